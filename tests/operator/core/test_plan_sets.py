"""Whole plans over several sets of replicas: tenants get their own and give them back, rank classes split and merge."""

from dataclasses import replace
from typing import Any

import pytest

from lorafleet_contracts.admin import ParityState, StepsState
from lorafleet_contracts.conditions import ConditionType
from lorafleet_contracts.names import SHARED_SET, class_set, merged_set, private_set, version_key
from lorafleet_operator.core.actions import Apply, Inspect, Load
from lorafleet_operator.core.assessment import assess
from lorafleet_operator.core.classes import step_model
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import Attempt, PoolSnapshot, Tenant, Workload
from tests.support.fleet import (
    NOW,
    make_adapter,
    make_pool,
    make_replica,
    make_snapshot,
    make_state,
    make_tenant,
    report_for,
)
from tests.support.plans import change_adapter, pick, settle, status_of, word
from tests.support.sets import act, run, under_load, where

T = ConditionType
PROMOTION = {"promoteAfter": "60s", "demoteAfter": "120s"}
MERGED, PRIVATE = merged_set("uid-demo-acme"), private_set("uid-demo-acme")
CLASS = class_set(128)


def pool_with(tenant: Tenant, *names: str, **spec: Any) -> PoolSnapshot:
    """A settled pool of two replicas, at most four, with these adapters and one tenant."""
    wanted = {"replicas": {"min": 2, "max": 4}, "promotion": PROMOTION, **spec}
    snapshot = make_snapshot(
        pool=make_pool(**wanted),
        adapters=tuple(make_adapter(name) for name in names),
        tenants=(tenant,),
        replicas=(make_replica(0), make_replica(1)),
        workloads={"shared": Workload(2, settled=True)},
    )
    return settle(snapshot)[0]


def acme(*names: str, **spec: Any) -> Tenant:
    return make_tenant("acme", adapters={"names": list(names)}, **spec)


def promotion_of(snapshot: PoolSnapshot) -> tuple[str, str, str | None]:
    found = snapshot.tenants[0].status.promotion
    assert found is not None
    return found.stage, found.reason, found.set


def key_of(snapshot: PoolSnapshot, name: str = "pirate") -> str:
    [adapter] = [each for each in snapshot.adapters if each.meta.name == name]
    assert adapter.status.digest is not None
    return version_key(adapter.meta.uid, adapter.status.digest)


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


def classes(**spec: Any) -> dict[str, Any]:
    return {
        "rankClasses": {"ceilings": [16, 128], "splitAfter": "60s", "mergeAfter": "60s"},
        "slo": {"itl": "6ms"},
        "replicas": {"min": 2, "max": 8},
        **spec,
    }


def ranked(snapshot: PoolSnapshot, **ranks: int) -> PoolSnapshot:
    """The snapshot with what inspections of these adapters find."""
    inspections = dict(snapshot.memory.inspections)
    for adapter in snapshot.adapters:
        report = report_for(f"http://assets/{adapter.meta.name}", rank=ranks[adapter.meta.name])
        for key in list(inspections):
            if key.uid == adapter.meta.uid:
                inspections[key] = Attempt(pending=False, at=NOW, report=report)
    return replace(snapshot, memory=replace(snapshot.memory, inspections=inspections))


def stepping(snapshot: PoolSnapshot, mean: float = 5.3e-3, per_rank: float = 1e-5) -> PoolSnapshot:
    """Shared engines that have counted steps of 5 ms and 10 us a rank (small ranks are as dear as many large ones)."""
    sums: dict[str, float] = dict.fromkeys(StepsState.model_fields, 0.0)
    for number in range(1000):
        sequences, ranks = 1 + number % 7, 8 * (number % 5)
        seconds = mean + per_rank * ranks
        for name, value in {
            "steps": 1, "seconds": seconds, "decode_steps": 1, "decode_seconds": seconds, "sequences": sequences,
            "rank_sum": ranks, "sequences_squared": sequences**2, "rank_squared": ranks**2,
            "sequences_rank": sequences * ranks, "seconds_sequences": seconds * sequences,
            "seconds_rank": seconds * ranks,
        }.items():  # fmt: skip
            sums[name] += value
    steps = StepsState.model_validate(sums)
    replicas = tuple(
        replace(each, state=each.state.model_copy(update={"steps": steps}))
        if each.set == SHARED_SET and each.state
        else each
        for each in snapshot.replicas
    )
    return replace(snapshot, replicas=replicas)


def split(**spec: Any) -> PoolSnapshot:
    """A settled pool whose large adapter has its class's own set."""
    small, large = make_adapter("small"), make_adapter("large")
    snapshot = make_snapshot(
        pool=make_pool(**classes(**spec)),
        adapters=(small, large),
        replicas=(make_replica(0), make_replica(1)),
        workloads={"shared": Workload(2, settled=True)},
    )
    snapshot = act(snapshot, plan_pool(snapshot, NOW), NOW)
    snapshot = settle(ranked(snapshot, small=8, large=128))[0]
    assert [each.status.rank_class for each in snapshot.adapters] == [16, 128]
    loaded = under_load(stepping(snapshot), acme={"small": 5.0, "large": 5.0})
    return run(loaded, NOW, 90)[0]


def test_a_class_is_split_off_and_its_adapters_move_without_a_gap() -> None:
    snapshot = split()
    assert snapshot.pool.status.rank_classes is not None
    assert snapshot.pool.status.rank_classes.split == [128]
    assert [each.status.set for each in snapshot.adapters] == [None, CLASS]
    assert where(snapshot, key_of(snapshot, "large")) == {CLASS}
    assert where(snapshot, key_of(snapshot, "small")) == {SHARED_SET}
    assert snapshot.workloads[CLASS].replicas == 2, "redundancy included"
    told = {each.name: each for each in snapshot.pool.status.sets}
    assert (told[CLASS].kind, told[CLASS].ceiling) == ("RankClass", 128)
    assert "slo.itl is 6.00 ms" in told[CLASS].message


def test_it_is_merged_again_when_the_reason_is_gone() -> None:
    snapshot = under_load(split(), acme={"small": 0.01, "large": 0.0})
    snapshot, seen = run(snapshot, NOW + 100, 90)
    assert "large on shared" in seen
    assert set(snapshot.workloads) == {SHARED_SET}
    assert where(snapshot, key_of(snapshot, "large")) == {SHARED_SET}


def test_without_room_it_is_not_split() -> None:
    snapshot = split(replicas={"min": 2, "max": 3})
    assert snapshot.pool.status.rank_classes is not None
    assert (snapshot.pool.status.rank_classes.split, snapshot.pool.status.rank_classes.reason) == ([], "NoRoom")
    assert set(snapshot.workloads) == {SHARED_SET}


def test_a_version_of_another_rank_moves_class_as_it_is_updated() -> None:
    snapshot = split()
    small = next(each for each in snapshot.adapters if each.meta.name == "small")
    fresh = make_adapter("small", meta={"generation": 2}, source={"uri": "http://assets/small-2"})
    changed = replace(
        snapshot,
        adapters=tuple(replace(fresh, status=each.status) if each is small else each for each in snapshot.adapters),
    )
    old = key_of(snapshot, "small")
    changed = act(changed, plan_pool(changed, NOW + 100), NOW + 100)
    inspections = {
        key: replace(each, report=report_for("http://assets/small-2", rank=64)) if key.generation == 2 else each
        for key, each in changed.memory.inspections.items()
    }
    changed = replace(changed, memory=replace(changed.memory, inspections=inspections))
    after, seen = run(changed, NOW + 101, 30)
    assert seen[-1] == "small on class-128"
    assert where(after, key_of(after, "small")) == {CLASS}
    assert where(after, old) == set()
    assert [each.status.rank_class for each in after.adapters if each.meta.name == "small"] == [128]


def test_a_class_set_that_is_lost_sends_its_adapters_to_the_shared_one() -> None:
    snapshot = split()
    lost = replace(snapshot, replicas=tuple(replace(each, ready=each.set == SHARED_SET) for each in snapshot.replicas))
    for second in range(5):
        lost = act(lost, plan_pool(lost, NOW + 100 + second), NOW + 100 + second)
    assert [each.status.set for each in lost.adapters] == [None, None]
    assert where(lost, key_of(lost, "large")) == {SHARED_SET}


def test_a_rank_above_all_classes_is_refused_with_what_would_help() -> None:
    snapshot = make_snapshot(pool=make_pool(**classes()), adapters=(make_adapter("huge"),))
    snapshot = ranked(act(snapshot, plan_pool(snapshot, NOW), NOW), huge=256)
    status = status_of(plan_pool(snapshot, NOW), "huge")
    assert word(status, T.STALLED) == ("True", "RankAboveCeiling")
    [message] = [each.message for each in status.conditions if each.type == T.READY]
    assert message == (
        "the adapter's rank is 256, the pool's classes hold ranks up to 16, 128: it would need a class of 256 or more. "
        "Its owner can add one to rankClasses.ceilings; train a smaller rank; or set isolation: Dedicated on the "
        "tenant that calls it, which costs 1 GPU and is bounded by promotion.maxDedicated"
    )


@pytest.mark.parametrize("neighbours", [(), (make_tenant("globex", adapters={"names": ["huge"]}),)])
def test_such_an_adapter_is_answered_by_an_isolated_tenants_set_alone(neighbours: tuple[Tenant, ...]) -> None:
    snapshot = make_snapshot(
        pool=make_pool(**classes()),
        adapters=(make_adapter("huge"),),
        tenants=(make_tenant("acme", adapters={"names": ["huge"]}, isolation="Dedicated"), *neighbours),
        replicas=(make_replica(0), make_replica(1)),
        workloads={"shared": Workload(2, settled=True)},
    )
    while not snapshot.memory.inspections:
        snapshot = act(snapshot, plan_pool(snapshot, NOW), NOW)
    snapshot = ranked(snapshot, huge=256)
    snapshot, _ = run(snapshot, NOW, 40)
    assert promotion_of(snapshot) == ("Dedicated", "Serving", PRIVATE)
    assert snapshot.adapters[0].status.set == PRIVATE
    assert where(snapshot, key_of(snapshot, "huge")) == {PRIVATE}
    assert snapshot.adapters[0].status.rank_class is None


def test_nothing_moves_before_steps_were_seen() -> None:
    snapshot = make_snapshot(pool=make_pool(**classes()), replicas=(make_replica(0, make_state()),))
    snapshot = act(snapshot, plan_pool(snapshot, NOW), NOW)
    assert snapshot.pool.status.rank_classes is not None
    assert snapshot.pool.status.rank_classes.reason == "NotMeasured"


@pytest.mark.parametrize("kind", ["varied", "constant"])
def test_steps_of_ranks_that_never_vary_are_priced_by_their_bytes(kind: str) -> None:
    snapshot = split()
    if kind == "constant":
        sums = dict.fromkeys(StepsState.model_fields, 0.0) | {
            "steps": 1000, "seconds": 5.0, "decode_steps": 1000, "decode_seconds": 5.0, "sequences": 1000,
            "sequences_squared": 1000, "rank_sum": 8000, "rank_squared": 64000, "sequences_rank": 8000,
            "seconds_sequences": 5.0, "seconds_rank": 40.0,
        }  # fmt: skip
        steps = StepsState.model_validate(sums)
        snapshot = replace(
            snapshot,
            replicas=tuple(
                replace(each, state=each.state.model_copy(update={"steps": steps})) if each.state else each
                for each in snapshot.replicas
            ),
        )
    model = step_model(snapshot, assess(snapshot, snapshot.pool.spec))
    assert model is not None
    assert model.measured is (kind == "varied")
    if kind == "constant":
        per_rank = 2000 / 136 / 50  # bytes of both adapters over their ranks, over the weights' bytes
        assert model.base_seconds == pytest.approx(5e-3 / (1 + per_rank * 8))
        assert model.seconds_per_rank == pytest.approx(model.base_seconds * per_rank)
    else:
        assert model.seconds_per_rank == pytest.approx(1e-5, rel=1e-3)
