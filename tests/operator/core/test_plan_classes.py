"""Whole plans over the sets of rank classes: they split and merge, adapters change class, none is above all of them."""

from dataclasses import replace
from typing import Any

import pytest

from lorafleet_contracts.admin import StepsState
from lorafleet_contracts.conditions import ConditionType
from lorafleet_contracts.names import SHARED_SET, class_set, private_set
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
from tests.support.plans import settle, status_of, word
from tests.support.sets import act, key_of, promotion_of, run, under_load, where

T = ConditionType
PRIVATE = private_set("uid-demo-acme")
CLASS = class_set(128)


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
