"""`kubectl apply` behaves: any order becomes Ready, applying twice changes nothing, users' objects stay theirs."""

import json
from collections.abc import Iterator

import pytest

from e2e.client import Client
from e2e.fleet import DEMO, KINDS, QUICKSTART, Fleet, Object, adapter, holds
from e2e.waiting import wait_until

ORDER = "lorafleet-e2e-order"


def reversed_objects() -> list[Object]:
    """Tenant, adapter, and last the pool: the worst order. One replica, in a namespace of its own."""
    ref = {"poolRef": {"name": "late"}}
    head = {"apiVersion": "lorafleet.io/v1alpha1"}
    resources = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
    pool_spec = {
        "baseModel": {"name": "smollm2-135m", "source": {"uri": f"http://demo-assets.{DEMO}/smollm2"}},
        "engine": {
            "dtype": "float32",
            "maxModelLen": 512,
            "memory": {"hostCache": "256Mi", "diskCache": "2Gi"},
            "pod": {"resources": resources},
        },
        "sources": {"allow": [{"prefix": f"http://demo-assets.{DEMO}/", "private": True}]},
    }
    robot = {"source": {"uri": f"http://demo-assets.{DEMO}/adapters/robot"}, **ref}
    return [
        {
            **head,
            "kind": "Tenant",
            "metadata": {"name": "early", "namespace": ORDER},
            "spec": {"adapters": {"names": ["robot"]}, **ref},
        },
        {**head, "kind": "LoraAdapter", "metadata": {"name": "robot", "namespace": ORDER}, "spec": robot},
        {**head, "kind": "LoraPool", "metadata": {"name": "late", "namespace": ORDER}, "spec": pool_spec},
    ]


@pytest.fixture
def order_namespace(fleet: Fleet, acme: Client) -> Iterator[str]:
    fleet.kubectl.run("create", "namespace", ORDER)
    yield ORDER
    fleet.kubectl.run("delete", "namespace", ORDER, "--timeout=120s")


def test_the_worst_order_becomes_ready_and_deleting_the_pool_leaves_nothing(fleet: Fleet, order_namespace: str) -> None:
    tenant, robot, pool = reversed_objects()
    fleet.apply(tenant)
    fleet.create_key(order_namespace, "early")
    fleet.apply(robot)
    wait_until(
        lambda: holds(fleet.get("loraadapter", "robot", order_namespace), "Ready", "False"),
        seconds=15,
        what="a verdict without a pool",
    )
    fleet.apply(pool)
    fleet.wait_ready(order_namespace)
    fleet.delete("lorapool", "late", order_namespace)
    wait_until(
        lambda: not fleet.list("statefulsets,services,secrets,pods", order_namespace),
        seconds=90,
        what="everything that belonged to the pool is gone",
    )


def test_applying_twice_is_a_zero_diff(fleet: Fleet, acme: Client) -> None:
    before = {kind: fleet.list(kind) for kind in KINDS}
    fleet.kubectl.run("diff", "-k", str(QUICKSTART))  # a difference ends it with status 1, which raises
    fleet.kubectl.run("apply", "-k", str(QUICKSTART))
    for kind in KINDS:
        for old, new in zip(before[kind], fleet.list(kind), strict=True):
            assert new["metadata"]["generation"] == old["metadata"]["generation"]
            assert new["spec"] == old["spec"]


def test_the_operator_touches_nothing_but_statuses(fleet: Fleet, acme: Client) -> None:
    for kind in KINDS:
        for each in json.loads(fleet.kubectl.run("get", kind, "-n", DEMO, "-o", "json", "--show-managed-fields"))[
            "items"
        ]:
            metadata = each["metadata"]
            assert "finalizers" not in metadata
            assert set(metadata.get("annotations", {})) <= {"kubectl.kubernetes.io/last-applied-configuration"}
            assert "ownerReferences" not in metadata
            written = [
                entry for entry in metadata["managedFields"] if entry["manager"].startswith("lorafleet-operator")
            ]
            assert written
            assert {entry.get("subresource") for entry in written} == {"status"}


def test_an_adapter_that_names_no_pool_says_so(fleet: Fleet, acme: Client) -> None:
    orphan = adapter("orphan", source="pirate", poolRef={"name": "no-such-pool"})
    fleet.apply(orphan)
    try:
        wait_until(lambda: holds(fleet.get("loraadapter", "orphan"), "Ready", "False"), seconds=15, what="its verdict")
        text = fleet.kubectl.run("describe", "loraadapter", "orphan", "-n", DEMO)
        assert "PoolNotFound" in text
        assert "no-such-pool" in text
    finally:
        fleet.delete("loraadapter", "orphan")
