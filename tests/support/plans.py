"""Reading whole plans and carrying them out. Used by tests/operator/core."""

from dataclasses import replace

from lorafleet_contracts.conditions import ConditionType, find_condition
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_operator.core.actions import Plan, StatusWrite
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.residency import GRACE_SECONDS
from lorafleet_operator.core.snapshot import (
    PoolSnapshot,
)
from tests.support.fleet import (
    NOW,
    carry_out,
    make_adapter,
    make_snapshot,
)

LATER = NOW + GRACE_SECONDS + 1


def pick(plan: Plan, kind: type) -> list:
    """The plan's actions of one kind."""
    return [each for each in plan.actions if isinstance(each, kind)]


def status_of(plan: Plan, name: str) -> LoraAdapterStatus:
    """The status that the plan writes to one adapter."""
    found = [each.status for each in plan.statuses if each.name == name and each.kind == "LoraAdapter"]
    assert len(found) == 1
    assert isinstance(found[0], LoraAdapterStatus)
    return found[0]


def word(status: LoraAdapterStatus, kind: ConditionType) -> tuple[str, str]:
    """(status, reason) of a condition."""
    condition = find_condition(status.conditions, kind)
    assert condition is not None
    return condition.status, condition.reason


def settle(snapshot: PoolSnapshot, now: float = NOW, rounds: int = 8) -> tuple[PoolSnapshot, list[StatusWrite]]:
    """Plan and carry out until a plan is empty; returns the end and all status writes on the way."""
    writes: list[StatusWrite] = []
    for _ in range(rounds):
        plan = plan_pool(snapshot, now)
        if not plan.actions and not plan.statuses:
            return snapshot, writes
        writes += plan.statuses
        snapshot = carry_out(snapshot, plan, now)
    raise AssertionError("the plans do not come to an end")


def ready_snapshot(**changes: object) -> PoolSnapshot:
    """A settled pool with adapter `pirate`."""
    return settle(make_snapshot(**{"adapters": (make_adapter("pirate"),), **changes}))[0]


def change_adapter(snapshot: PoolSnapshot, **spec: object) -> PoolSnapshot:
    """The owner edits the spec of the only adapter."""
    [adapter] = snapshot.adapters
    fresh = make_adapter(adapter.meta.name, meta={"generation": adapter.meta.generation + 1}, **spec)
    return replace(snapshot, adapters=(replace(fresh, status=adapter.status),))
