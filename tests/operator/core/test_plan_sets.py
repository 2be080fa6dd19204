"""Whole plans over several sets of replicas: tenants get their own and give them back."""

from dataclasses import replace
from typing import Any

from lorafleet_contracts.admin import ParityState
from lorafleet_contracts.conditions import ConditionType
from lorafleet_contracts.names import SHARED_SET, merged_set, private_set
from lorafleet_operator.core.actions import Apply, Inspect, Load
from lorafleet_operator.core.ownsets import answered_apart
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import PoolSnapshot, Tenant, Workload
from tests.support.fleet import (
    NOW,
    make_adapter,
    make_pool,
    make_replica,
    make_snapshot,
    make_tenant,
)
from tests.support.plans import change_adapter, pick, settle, word
from tests.support.sets import act, key_of, promotion_of, run, under_load, where

T = ConditionType
PROMOTION = {"promoteAfter": "60s", "demoteAfter": "120s"}
MERGED, PRIVATE = merged_set("uid-demo-acme"), private_set("uid-demo-acme")


def pool_with(tenant: Tenant, *names: str, **spec: Any) -> PoolSnapshot:
    """A settled pool of two replicas, at most four, with these adapters and one tenant."""
    wanted = {"replicas": {"min": 2, "max": 4}, "promotion": PROMOTION, **spec}
    count = wanted["replicas"]["min"]
    snapshot = make_snapshot(
        pool=make_pool(**wanted),
        adapters=tuple(make_adapter(name) for name in names),
        tenants=(tenant,),
        replicas=tuple(make_replica(number) for number in range(count)),
        workloads={"shared": Workload(count, settled=True)},
    )
    return settle(snapshot)[0]


def acme(*names: str, **spec: Any) -> Tenant:
    return make_tenant("acme", adapters={"names": list(names)}, **spec)


def test_a_heavy_tenant_goes_to_a_merged_set_and_back() -> None:
    quiet = pool_with(acme("pirate"), "pirate")
    busy, seen = run(under_load(quiet, acme={"pirate": 8.0}), NOW, 90)
    assert [line for line in seen if line.startswith("acme")] == [
        "acme: Shared AboveThreshold",
        "acme: Warming Load",
        "acme: Checking Merging",
        "acme: CuttingOver ParityPassed",
        "acme: Dedicated Serving",
    ]
    assert promotion_of(busy) == ("Dedicated", "Serving", MERGED)
    assert where(busy, key_of(busy)) == {SHARED_SET, MERGED}, "the shared set can still take over"
    [sets] = [[each.name for each in busy.pool.status.sets]]
    assert sets == ["shared", MERGED]
    calm, seen = run(under_load(busy, acme={"pirate": 0.5}), NOW + 100, 140)
    assert [line for line in seen if line.startswith("acme")] == [
        "acme: Dedicated BelowThreshold",
        "acme: Draining Demoted",
        "acme: Shared Demoted",
    ]
    assert set(calm.workloads) == {SHARED_SET}
    assert promotion_of(calm) == ("Shared", "Demoted", None)


def test_what_a_tenant_s_own_replicas_answer_makes_no_shared_replica_busy() -> None:
    quiet = pool_with(acme("pirate"), "pirate", *"abcdef", replicas={"min": 3, "max": 6})
    others = make_tenant("globex", adapters={"names": list("abcdef")})
    loads = {"acme": {"pirate": 8.0}, "globex": dict.fromkeys("abcdef", 0.8)}
    busy, _ = run(under_load(replace(quiet, tenants=(*quiet.tenants, others)), **loads), NOW, 90)
    assert promotion_of(busy) == ("Dedicated", "Serving", MERGED)
    assert answered_apart(busy) == ["demo/acme"]
    for minute in range(10):
        busy, _ = run(busy, NOW + 100 + 60 * minute, 10)
    held = [sum(key_of(busy, name) in versions_on(busy, number) for name in "abcdef") for number in range(3)]
    assert held == [2, 2, 2], "the pirate's 8 requests/s are not counted where they are not"
    assert where(busy, key_of(busy)) == {SHARED_SET, MERGED}
    lost = replace(busy, replicas=tuple(each for each in busy.replicas if each.set == SHARED_SET))
    assert answered_apart(lost) == []


def versions_on(snapshot: PoolSnapshot, number: int) -> set[str]:
    [state] = [each.state for each in snapshot.replicas if each.name == f"smol-shared-{number}"]
    assert state is not None
    return {each.key for each in state.versions}


def test_the_merged_engines_are_started_with_the_version_and_its_source() -> None:
    busy = under_load(pool_with(acme("pirate"), "pirate"), acme={"pirate": 8.0})
    busy, _ = run(busy, NOW, 59)
    plan = plan_pool(busy, NOW + 61)
    [manifest] = [each.manifest for each in pick(plan, Apply) if each.key.startswith("StatefulSet/")]
    env = {each["name"]: each["value"] for each in manifest["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["LORAFLEET_MERGE_ADAPTER"] == "http://assets/pirate"
    assert env["LORAFLEET_MERGE_VERSION"] == key_of(busy)
    assert env["LORAFLEET_MERGE_DISPLAY"] == "demo/pirate"
    assert [each.reason for each in plan.warnings] == ["PromotionWarming"]
    assert [each.type for each in plan.warnings] == ["Normal"]


def test_a_tenant_of_several_adapters_gets_a_private_set_with_all_of_them() -> None:
    quiet = pool_with(acme("pirate", "poet"), "pirate", "poet")
    busy, seen = run(under_load(quiet, acme={"pirate": 4.0, "poet": 4.0}), NOW, 90)
    assert "acme: Checking Loading" in seen
    assert promotion_of(busy) == ("Dedicated", "Serving", PRIVATE)
    for name in ("pirate", "poet"):
        assert where(busy, key_of(busy, name)) == {SHARED_SET, PRIVATE}


def test_an_isolated_tenant_has_its_set_from_the_start() -> None:
    quiet = pool_with(acme("pirate"), "pirate")
    snapshot, seen = run(replace(quiet, tenants=(acme("pirate", isolation="Dedicated"),)), NOW, 30)
    assert seen[0] == "acme: Warming Isolation"
    assert promotion_of(snapshot) == ("Dedicated", "Serving", PRIVATE)


def isolated_pool(*more: Tenant, **spec: Any) -> PoolSnapshot:
    """A pool whose isolated tenant's adapter is `own` and, with all others', `lib`; nothing of it has been done."""
    tenant = make_tenant("acme", adapters={"names": ["own", "lib"], "base": True}, isolation="Dedicated")
    return make_snapshot(
        pool=make_pool(**{"replicas": {"min": 2, "max": 4}, "promotion": PROMOTION, **spec}),
        adapters=(make_adapter("own"), make_adapter("lib")),
        tenants=(tenant, make_tenant("globex", adapters={"names": ["lib"]}), *more),
        replicas=(make_replica(0), make_replica(1)),
        workloads={"shared": Workload(2, settled=True)},
    )


def test_what_only_isolated_tenants_may_call_never_comes_on_a_shared_replica() -> None:
    snapshot, ever = isolated_pool(), set()
    for second in range(40):
        plan = plan_pool(snapshot, NOW + second)
        snapshot = act(snapshot, plan, NOW + second)
        on = {each.name: each.set for each in snapshot.replicas}
        ever |= {on[each.replica] for each in pick(plan, Inspect) if each.key.uid == "uid-demo-own"}
        ever |= {on[each.target.replica] for each in pick(plan, Load) if each.target.uid == "uid-demo-own"}
    assert ever == {PRIVATE}
    assert promotion_of(snapshot) == ("Dedicated", "Serving", PRIVATE)
    assert [each.status.isolation for each in snapshot.tenants] == ["Dedicated", "Shared"]
    assert where(snapshot, key_of(snapshot, "own")) == {PRIVATE}
    assert where(snapshot, key_of(snapshot, "lib")) == {SHARED_SET, PRIVATE}
    assert {each.meta.name: each.status.set for each in snapshot.adapters} == {"own": PRIVATE, "lib": None}


def test_without_room_it_waits_and_nothing_of_it_is_loaded_elsewhere() -> None:
    snapshot, _ = run(isolated_pool(promotion=PROMOTION | {"maxDedicated": 0}), NOW, 20)
    assert promotion_of(snapshot) == ("Shared", "NoRoom", None)
    assert snapshot.tenants[0].status.isolation == "Dedicated"
    assert [each.status.digest is None for each in snapshot.adapters] == [True, False]
    told = word(snapshot.adapters[0].status, T.VERIFIED)
    assert told == ("Unknown", "AwaitingReplica")


def switched(snapshot: PoolSnapshot, isolation: str) -> PoolSnapshot:
    """The owner changes the first tenant's isolation."""
    tenant, *others = snapshot.tenants
    assert tenant.spec is not None
    spec = tenant.spec.model_copy(update={"isolation": isolation})
    return replace(snapshot, tenants=(replace(tenant, spec=spec), *others))


def test_a_tenant_moves_into_isolation_and_out_of_it_without_a_gap() -> None:
    """`run` checks in every step that what statuses name is answered where they say."""
    calm, _ = run(switched(isolated_pool(), "Shared"), NOW, 20)
    assert where(calm, key_of(calm, "own")) == {SHARED_SET}
    snapshot, now, forces = switched(calm, "Dedicated"), NOW + 100, []
    for _ in range(30):
        snapshot, _ = run(snapshot, now, 0)
        now += 1
        status = snapshot.tenants[0].status
        forces.append((status.isolation, status.promotion is not None and status.promotion.stage))
    assert ("Shared", "Warming") in forces, "it goes on where it was until its own set takes over"
    assert all(stage in ("CuttingOver", "Dedicated") for force, stage in forces if force == "Dedicated")
    assert forces[-1] == ("Dedicated", "Dedicated")
    assert where(snapshot, key_of(snapshot, "own")) == {PRIVATE}

    back, seen = run(switched(snapshot, "Shared"), NOW + 200, 140)
    assert "acme: Draining Demoted" in seen
    assert promotion_of(back) == ("Shared", "Demoted", None)
    assert where(back, key_of(back, "own")) == {SHARED_SET}
    assert set(back.workloads) == {SHARED_SET}


def test_where_there_is_no_room_a_tenant_that_wants_isolation_stays_where_it_is_answered() -> None:
    calm, _ = run(switched(isolated_pool(promotion=PROMOTION | {"maxDedicated": 0}), "Shared"), NOW, 20)
    snapshot, _ = run(switched(calm, "Dedicated"), NOW + 100, 20)
    assert promotion_of(snapshot) == ("Shared", "NoRoom", None)
    assert snapshot.tenants[0].status.isolation == "Shared"
    assert where(snapshot, key_of(snapshot, "own")) == {SHARED_SET}


def test_an_isolated_tenant_waits_for_its_set_however_long_that_is_lost() -> None:
    snapshot, _ = run(isolated_pool(), NOW, 30)
    lost = replace(snapshot, replicas=tuple(replace(each, ready=each.set != PRIVATE) for each in snapshot.replicas))
    for second in (*range(100, 130), *range(800, 830)):
        lost = act(lost, plan_pool(lost, NOW + second), NOW + second)
    assert promotion_of(lost) == ("Dedicated", "SetLost", PRIVATE)
    assert where(lost, key_of(lost, "own")) == set()
    found = replace(lost, replicas=tuple(replace(each, ready=True) for each in lost.replicas))
    found, _ = run(found, NOW + 900, 10)
    assert promotion_of(found) == ("Dedicated", "Serving", PRIVATE)


def test_without_room_nothing_is_taken_and_the_tenant_is_told() -> None:
    for spec in (
        {"replicas": {"min": 2}},
        {"replicas": {"min": 2, "max": 2}},
        {"promotion": PROMOTION | {"maxDedicated": 0}},
    ):
        snapshot = pool_with(acme("pirate"), "pirate", **spec)
        snapshot, _ = run(under_load(snapshot, acme={"pirate": 8.0}), NOW, 90)
        assert promotion_of(snapshot) == ("Shared", "NoRoom", None)
        assert set(snapshot.workloads) == {SHARED_SET}


def test_an_old_manifest_means_what_it_did() -> None:
    snapshot = pool_with(acme("pirate"), "pirate", replicas={"min": 2})
    assert snapshot.tenants[0].status.promotion is None
    assert snapshot.pool.status.rank_classes is None
    assert (snapshot.adapters[0].status.set, snapshot.adapters[0].status.rank_class) == (None, None)
    assert not plan_pool(snapshot, NOW).statuses


def test_a_merge_that_fails_parity_ends_on_the_shared_set_with_the_figures() -> None:
    snapshot = under_load(pool_with(acme("pirate"), "pirate"), acme={"pirate": 8.0})
    bad = ParityState(merged=2e-3, unmerged=1e-3, same_argmax=0.9, positions=160)
    warnings = []
    for second in range(120):
        plan = plan_pool(snapshot, NOW + second)
        warnings += [each for each in plan.warnings if each.type == "Warning"]
        snapshot = act(snapshot, plan, NOW + second, bad)
    assert promotion_of(snapshot) == ("Shared", "ParityFailed", None)
    assert set(snapshot.workloads) == {SHARED_SET}
    assert "2.00e-03 merged and 1.00e-03 unmerged" in warnings[0].message


def test_an_engine_that_ends_over_parity_is_understood() -> None:
    snapshot = under_load(pool_with(acme("pirate"), "pirate"), acme={"pirate": 8.0})
    snapshot, _ = run(snapshot, NOW, 61)
    words = "ParityError: the merged adapter fails parity on 160 positions"
    dead = tuple(
        replace(each, ready=False, state=None, waiting="CrashLoopBackOff", message=words)
        if each.set == MERGED
        else each
        for each in snapshot.replicas
    )
    plan = plan_pool(replace(snapshot, replicas=dead), NOW + 62)
    [status] = [each.status for each in plan.statuses if each.kind == "Tenant"]
    assert (status.promotion.stage, status.promotion.reason) == ("Draining", "ParityFailed")
    assert words in status.promotion.message


def test_a_new_version_sends_the_tenant_home_first_and_then_to_a_new_merged_set() -> None:
    busy, _ = run(under_load(pool_with(acme("pirate"), "pirate"), acme={"pirate": 8.0}), NOW, 90)
    old = key_of(busy)
    changed = change_adapter(busy, source={"uri": "http://assets/pirate-2"})
    after, seen = run(changed, NOW + 100, 40)
    assert [line for line in seen if line.startswith("acme")][:4] == [
        "acme: Dedicated Serving",
        "acme: Draining VersionChanged",
        "acme: Shared VersionChanged",
        "acme: Warming Load",
    ]
    assert promotion_of(after) == ("Dedicated", "Serving", MERGED)
    assert key_of(after) != old
    assert where(after, key_of(after)) == {SHARED_SET, MERGED}
    assert where(after, old) == set()


def test_a_tenant_that_is_deleted_takes_its_set_with_it() -> None:
    busy, _ = run(under_load(pool_with(acme("pirate"), "pirate"), acme={"pirate": 8.0}), NOW, 90)
    gone, _ = run(replace(busy, tenants=()), NOW + 100, 10)
    assert set(gone.workloads) == {SHARED_SET}


def test_a_lost_set_is_told_and_given_up_after_ten_minutes() -> None:
    busy, _ = run(under_load(pool_with(acme("pirate"), "pirate"), acme={"pirate": 8.0}), NOW, 90)
    lost = replace(busy, replicas=tuple(replace(each, ready=each.set != MERGED) for each in busy.replicas))
    lost, seen = run(lost, NOW + 100, 30)
    assert "acme: Dedicated SetLost" in seen
    lost, seen = run(lost, NOW + 700, 30)
    assert promotion_of(lost) == ("Shared", "SetLost", None)
