"""Which sets a pool should have, and how large."""

from dataclasses import replace

import pytest

from lorafleet_contracts.resources.pool import LoraPoolStatus, Replicas
from lorafleet_operator.core.actions import Apply, Plan
from lorafleet_operator.core.fleet import fixed_size
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.popularity import Pace, Rates, Track
from lorafleet_operator.core.sizing import Needs
from lorafleet_operator.core.snapshot import PoolSnapshot, Workload
from tests.support.fleet import NOW, carry_out, make_adapter, make_pool, make_replica, make_snapshot, make_state
from tests.support.plans import settle

STABLE_SECONDS = 300.0


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ({}, 1),
        ({"min": 2, "max": 5}, 2),
        ({"mode": "External", "desired": 3}, 3),
        ({"mode": "External", "desired": 3, "min": 4}, 4),
        ({"mode": "External", "desired": 3, "max": 2}, 2),
        ({"mode": "External", "desired": 3, "min": 2, "max": 5}, 3),
    ],
)
def test_the_size_of_the_shared_set(replicas: dict[str, object], expected: int) -> None:
    assert fixed_size(Replicas.model_validate(replicas)) == expected


def busy(requests: float, **changes: object) -> PoolSnapshot:
    """A settled pool of two replicas, between one and eight, of which each does half of so many requests a second."""
    fields = {
        "pool": make_pool(replicas={"max": 8}),
        "adapters": (make_adapter("pirate"),),
        "replicas": (make_replica(0), make_replica(1)),
        "workloads": {"shared": Workload(2, settled=True)},
    }
    half = Rates(Pace(fast=requests / 2), Pace())
    load = Track(
        adapters={"uid-demo-pirate": Rates(Pace(requests, 0.0))},
        replicas={f"smol-shared-{number}": half for number in range(2)},
    )
    return replace(settle(make_snapshot(**fields))[0], load=load, **changes)  # type: ignore[arg-type]


def replicas_of(plan: Plan) -> int | None:
    """What the plan asks of the StatefulSet, None where it leaves it alone."""
    found = [each.manifest for each in plan.actions if isinstance(each, Apply) and each.key.startswith("StatefulSet/")]
    return found[0]["spec"]["replicas"] if found else None


def test_a_pool_grows_with_its_load_and_says_why() -> None:
    plan = plan_pool(busy(30), NOW)
    assert replicas_of(plan) == 5
    assert plan.needs == {"shared": 5}
    [status] = [each.status for each in plan.statuses if each.kind == "LoraPool"]
    assert isinstance(status, LoraPoolStatus)
    assert status.sets[0].desired == 5
    assert status.sets[0].message.startswith("5 for 30 requests/s at 8 each (assumed), 1 to lose")
    assert status.capacity is not None
    assert (status.capacity.value, status.capacity.source, status.capacity.penalty_percent) == ("10", "Assumed", 20)


def test_a_pool_that_grows_has_lost_nothing_until_it_does() -> None:
    full = plan_pool(busy(0), NOW)
    assert not [each for each in full.statuses if each.kind == "LoraPool"], "it stands as it is"
    before = busy(0)
    [degraded] = [each for each in before.pool.status.conditions if each.type == "Degraded"]
    assert degraded.reason == "FullyRedundant"
    grown = carry_out(busy(30), plan_pool(busy(30), NOW))
    grown = replace(grown, workloads={"shared": Workload(5, settled=True)})

    def told(snapshot: PoolSnapshot) -> tuple[str, str]:
        after = carry_out(snapshot, plan_pool(snapshot, NOW)).pool.status
        [found] = [each for each in after.conditions if each.type == "Degraded"]
        return found.status, found.reason

    assert told(grown) == ("False", "Progressing")
    gone = replace(busy(30), replicas=(make_replica(0),), workloads={"shared": Workload(2, settled=True)})
    assert told(gone) == ("True", "RedundancyLost")


def test_the_words_stand_while_the_size_does() -> None:
    grown = carry_out(busy(30), plan_pool(busy(30), NOW))
    more = replace(grown, load=busy(31).load)
    assert not [each for each in plan_pool(more, NOW).statuses if each.kind == "LoraPool"]


def test_a_pool_shrinks_after_the_window_and_a_new_process_waits_for_one() -> None:
    fresh = plan_pool(busy(0), NOW)
    assert (replicas_of(fresh), fresh.again_in) == (None, STABLE_SECONDS)
    idle = busy(0, needs={"shared": Needs(NOW - 2 * STABLE_SECONDS)})
    assert replicas_of(plan_pool(idle, NOW)) == 1


def test_a_pool_keeps_replicas_for_the_adapters_that_are_asked_for() -> None:
    known = {"shared": Needs(NOW - 2 * STABLE_SECONDS)}
    wide = busy(0, needs=known)
    assert replicas_of(plan_pool(wide, NOW)) == 1
    small = tuple(make_replica(number, make_state(budget=600)) for number in range(2))
    assert replicas_of(plan_pool(replace(wide, replicas=small), NOW)) is None, "its 1000 bytes need both"
    twice = make_adapter("pirate", minReplicas=2)
    [adapter] = wide.adapters
    assert replicas_of(plan_pool(replace(wide, adapters=(replace(twice, status=adapter.status),)), NOW)) is None
    pinned = replace(make_adapter("pirate", pinned=True), status=adapter.status)
    sure = replace(wide, adapters=(pinned,), load=Track())
    assert replicas_of(plan_pool(sure, NOW)) is None, "a pinned one is on two, used or not"
    unasked = replace(wide, adapters=(replace(twice, status=adapter.status),), load=Track())
    assert replicas_of(plan_pool(unasked, NOW)) == 1


def test_external_and_fixed_pools_do_as_they_are_told_and_say_so() -> None:
    external = replace(busy(30), pool=make_pool(replicas={"mode": "External", "desired": 3, "max": 8}))
    plan = plan_pool(external, NOW)
    assert (replicas_of(plan), plan.needs) == (3, {})
    [status] = [each.status for each in plan.statuses if each.kind == "LoraPool"]
    assert isinstance(status, LoraPoolStatus)
    assert status.sets[0].message == ("replicas.desired 3 (mode External), with replicas.min 1 and replicas.max 8")
    fixed = plan_pool(replace(busy(30), pool=make_pool(replicas={"min": 2})), NOW)
    assert replicas_of(fixed) is None
