"""Events that tell what happened to pools, adapters and tenants when their verdicts turn. Called by the planning.

A first Ready is no event: the condition says it, and ten thousand adapters applied at once would write as many events.
"""

from collections.abc import Iterable, Sequence

from lorafleet_contracts.conditions import Condition, ConditionType, Reason, find_condition
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_operator.core.actions import StatusWrite, Warn
from lorafleet_operator.core.conditions import is_true, parse_timestamp
from lorafleet_operator.core.snapshot import Adapter, Pool, PoolSnapshot, Tenant

T = ConditionType
RECOVERED = "Recovered"
UPDATED = "Updated"


def tell_story(writes: Sequence[StatusWrite], snapshot: PoolSnapshot) -> list[Warn]:
    """The events of these new statuses, beside those that stand in the snapshot."""
    pool = snapshot.pool
    before: dict[str, Pool | Adapter | Tenant] = {pool.meta.uid: pool}
    before.update({each.meta.uid: each for each in snapshot.adapters})
    before.update({each.meta.uid: each for each in snapshot.tenants})
    return [event for write in writes if write.uid in before for event in _tell(write, before[write.uid])]


def _tell(write: StatusWrite, thing: Pool | Adapter | Tenant) -> Iterable[Warn]:
    old, new = thing.status.conditions, write.status.conditions
    stalled, was = find_condition(new, T.STALLED), find_condition(old, T.STALLED)
    degraded = find_condition(new, T.DEGRADED)
    ready = find_condition(new, T.READY)
    if stalled and stalled.status == "True":
        if was is None or (was.status, was.reason) != (stalled.status, stalled.reason):
            yield _event(write, thing, stalled, stalled.reason, stalled.message)
    elif degraded and degraded.status == "True" and not is_true(old, T.DEGRADED):
        yield _event(write, thing, degraded, Reason.REDUNDANCY_LOST.value, degraded.message)
    elif degraded and degraded.reason == Reason.FULLY_REDUNDANT and is_true(old, T.DEGRADED):
        yield _event(write, thing, degraded, Reason.FULLY_REDUNDANT.value, "all replicas are ready again", normal=True)
    elif ready and ready.status == "True" and was and was.status == "True":
        yield _event(write, thing, ready, RECOVERED, f"ready again, after: {was.reason}", normal=True)
    elif ready and ready.status == "True" and isinstance(thing, Adapter) and (moved := _moved(write, thing)):
        yield _event(write, thing, ready, UPDATED, moved, normal=True)


def _moved(write: StatusWrite, adapter: Adapter) -> str:
    """Which version took over from which, or that a changed spec asks for the one that serves."""
    assert isinstance(write.status, LoraAdapterStatus)
    old, new = adapter.status.digest, write.status.digest
    if not old or not new:
        return ""
    if old != new:
        return f"{new} serves; {old} did before"
    before = find_condition(adapter.status.conditions, T.READY)
    inspected = before is not None and before.reason == Reason.INSPECTING
    return f"{new} serves on: it is what is asked for now" if inspected else ""


def _event(
    write: StatusWrite,
    thing: Pool | Adapter | Tenant,
    since: Condition,
    reason: str,
    message: str,
    *,
    normal: bool = False,
) -> Warn:
    moment = int(parse_timestamp(since.last_transition_time))
    name = f"{write.name}.{write.uid}.{thing.meta.generation}.{reason.lower()}.{moment:x}"
    return Warn(name, write, thing.meta.generation, reason, message, "Normal" if normal else "Warning")
