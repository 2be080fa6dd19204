"""Which tenants of a pool have replicas of their own: promotion.py's machine for each, within one budget for all.

Called by fleet.py once a plan. Pure. Laws: a tenant has at most one set; what all sets hold never grows beyond the
budget; sets that are there come before new ones, isolated tenants before loaded ones, heavy ones before light ones.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lorafleet_contracts.names import merged_set, private_set
from lorafleet_contracts.resources.tenant import ROUTED_STAGES, PromotionStatus
from lorafleet_operator.core.conditions import parse_timestamp, timestamp
from lorafleet_operator.core.promotion import (
    DRAIN_SECONDS,
    LOST_SECONDS,
    RETRY_SECONDS,
    SETTLE_SECONDS,
    TABLE,
    WARM_SECONDS,
    Moment,
    Rules,
    Stage,
    TenantCase,
    Why,
    find_event,
    version_to_merge,
)

FULL = 0.9
"""Of what the replicas of a set carry: above it, it gets one more."""
LAZY = 0.8
"""A set gives a replica back only when the load is below so much of what would make it take the replica again."""
MESSAGE_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Budget:
    """`dedicated` replicas may be in tenants' own sets, `spare` more fit under the pool's limit beside all there are.

    `gives_back` tells how many replicas the shared set could do without if so much load left it.
    """

    dedicated: int
    spare: int
    gives_back: Callable[[float], int]


@dataclass(frozen=True, slots=True)
class Promoted:
    """A tenant's verdict: its status (the very object that stands while nothing changed), and its set's replicas."""

    case: TenantCase
    status: PromotionStatus | None
    replicas: int = 0


def decide_promotions(cases: Sequence[TenantCase], rules: Rules, budget: Budget, now: float) -> list[Promoted]:
    """Move every tenant on."""
    moments = sorted((Moment(case, rules, now) for case in cases), key=_urgency)
    standing = [each for each in moments if each.stage is not Stage.SHARED]
    left = budget.dedicated - sum(_held(each.case) for each in standing)
    moved = []
    for moment in reversed(standing):  # the least urgent makes way first
        over = left < 0 and moment.stage is not Stage.DRAINING
        left += _held(moment.case) if over else 0
        moved.append(_move(replace(moment, over=over)))
    room = min(max(left, 0), budget.spare)
    decided: list[Promoted] = []
    for promoted in reversed(moved):
        sized = _size(promoted, room)
        room -= max(sized.replicas - promoted.replicas, 0)
        decided.append(sized)
    for moment in moments:
        if moment.stage is Stage.SHARED:
            needs = replicas_for(moment.case.load)
            back = budget.gives_back(moment.case.load)
            promoted = _move(replace(moment, room=room, needs=needs, gives_back=back))
            room -= promoted.replicas
            decided.append(promoted)
    return decided


def set_of(status: PromotionStatus | None) -> str | None:
    """The set that a tenant has, in whatever stage."""
    return status.set if status is not None and Stage(status.stage) is not Stage.SHARED else None


def routed_set(status: PromotionStatus | None) -> str | None:
    """The set that gateways send a tenant's requests to first."""
    return status.set if status is not None and status.stage in ROUTED_STAGES else None


def replicas_for(load: float, current: int = 0) -> int:
    """Replicas for so many replicas' worth of load; a set of `current` ones shrinks only where it is clearly large."""
    wanted = max(math.ceil(load / FULL - 1e-9), 1)
    return current if wanted < current and load > (current - 1) * FULL * LAZY else wanted


def next_moment(decided: Sequence[Promoted], rules: Rules, now: float) -> float | None:
    """The next epoch second at which time alone may move somebody."""
    by_stage = {
        Stage.WARMING: (WARM_SECONDS,),
        Stage.CHECKING: (WARM_SECONDS,),
        Stage.CUTTING_OVER: (SETTLE_SECONDS,),
        Stage.DRAINING: (SETTLE_SECONDS, DRAIN_SECONDS),
    }
    by_reason = {
        **RETRY_SECONDS,
        Why.ABOVE_THRESHOLD: rules.promote_after,
        Why.BELOW_THRESHOLD: rules.demote_after,
        Why.SET_LOST: LOST_SECONDS,
    }
    moments = [
        parse_timestamp(status.since) + wait
        for status in (each.status for each in decided)
        if status is not None
        for wait in by_stage.get(Stage(status.stage), (by_reason.get(status.reason, 0.0),))
    ]
    return min((each for each in moments if each > now), default=None)


def _urgency(moment: Moment) -> tuple[bool, float, str, str]:
    case = moment.case
    return not case.isolated, 0.0 if case.isolated else -case.load, case.created, case.key


def _held(case: TenantCase) -> int:
    return max(case.own.wanted, 1)


def _move(moment: Moment) -> Promoted:
    """One tenant's next status."""
    found, case, status = find_event(moment), moment.case, moment.case.status
    held = _held(case) if moment.stage is not Stage.SHARED else 0
    if found.event is None and (found.why is None or found.why is moment.reason):
        return Promoted(case, status, held)
    stage = moment.stage if found.event is None else TABLE[moment.stage, found.event]
    kept = status or PromotionStatus(stage=stage.value, reason="-", since=timestamp(moment.now))
    changes: dict[str, str | None] = {
        "stage": stage.value,
        "reason": (found.why or Why.NOT_WANTED).value,
        "message": (found.message or kept.message)[:MESSAGE_LIMIT],
        "since": timestamp(moment.now),
    }
    if moment.stage is Stage.SHARED:
        changes |= {"set": None, "version": None, "source": None}
        if stage is Stage.WARMING:
            held = moment.needs
            changes |= _new_set(case)
    elif stage is Stage.SHARED:
        held = 0
        failed = kept.version if found.why is Why.PARITY_FAILED else None
        changes |= {"set": None, "version": failed, "source": None}
    return Promoted(case, kept.model_copy(update=changes), held)


def _new_set(case: TenantCase) -> dict[str, str | None]:
    merge = version_to_merge(case)
    if merge is None:
        return {"set": private_set(case.uid)}
    return {"set": merged_set(case.uid), "version": merge[0], "source": merge[1]}


def _size(promoted: Promoted, room: int) -> Promoted:
    """A set that lasts has as many replicas as its load needs and there is room for."""
    if promoted.status is None or promoted.status.stage in (Stage.SHARED, Stage.DRAINING):
        return promoted
    wanted = replicas_for(promoted.case.load, promoted.replicas)
    return replace(promoted, replicas=min(wanted, promoted.replicas + max(room, 0)))
