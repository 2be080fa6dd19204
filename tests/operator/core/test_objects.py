"""Which of a pool's objects are made and which end."""

import base64
from dataclasses import replace

from lorafleet_operator.core.actions import Apply, Delete
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import Certificate, PoolTls, Workload
from tests.support.fleet import NOW, carry_out, make_pool, make_snapshot
from tests.support.plans import pick


def test_a_set_that_is_no_longer_wanted_ends_with_its_stateful_set_last() -> None:
    there = {"shared": Workload(1, settled=True), "class-64": Workload(2, settled=True)}
    snapshot = make_snapshot(workloads=there)
    plan = plan_pool(snapshot, NOW)
    assert [(each.key, each.namespace, each.owner) for each in pick(plan, Delete)] == [
        (f"{kind}/smol-class-64", "demo", "uid-demo-smol") for kind in ("Service", "PodDisruptionBudget", "StatefulSet")
    ]
    assert not pick(plan_pool(carry_out(snapshot, plan), NOW), Delete)


def test_a_refused_pool_deletes_nothing() -> None:
    there = {"class-64": Workload(2, settled=True)}
    refused = make_pool(allowedNamespaces={"from": "Selector", "selector": {}})
    assert not plan_pool(make_snapshot(pool=refused, workloads=there, cluster_wide=False), NOW).actions


def test_what_proves_an_engine_is_there_before_the_engines() -> None:
    snapshot = replace(make_snapshot(), tls=PoolTls(Certificate("f", "CHAIN", "KEY"), "ROOTS"))
    made = {each.key: each.manifest for each in pick(plan_pool(snapshot, NOW), Apply)}
    names = list(made)
    assert names.index("Secret/smol-tls") < names.index("StatefulSet/smol-shared")
    texts = {key: base64.b64decode(value).decode() for key, value in made["Secret/smol-tls"]["data"].items()}
    assert texts == {"tls.crt": "CHAIN", "tls.key": "KEY", "ca.crt": "ROOTS"}
    assert base64.b64decode(made["Secret/smol-tokens"]["data"]["ca.crt"]) == b"ROOTS"

    without = [each.key for each in pick(plan_pool(replace(snapshot, tls=PoolTls(roots="ROOTS")), NOW), Apply)]
    assert "Secret/smol-tls" not in without, "what the engines have stays"
