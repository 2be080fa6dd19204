"""What statuses say of popularity, and the rare write of a status for nothing else. Called by the planning."""

from collections.abc import Collection

from lorafleet_contracts.resources.adapter import PopularityStatus
from lorafleet_operator.core.actions import StatusWrite
from lorafleet_operator.core.popularity import bucket
from lorafleet_operator.core.snapshot import Adapter, PoolSnapshot

TELL_SECONDS = 5.0
"""Between two statuses of a pool that are written for popularity alone."""


def shown_popularity(adapter: Adapter, snapshot: PoolSnapshot) -> PopularityStatus | None:
    """What a status of the adapter that is written now says."""
    return bucket(snapshot.load.adapters.get(adapter.meta.uid), adapter.status.popularity)


def tell_popularity(
    snapshot: PoolSnapshot, written: Collection[str], now: float
) -> tuple[list[StatusWrite], float | None]:
    """The hottest adapter whose status is not about true, if it is time; else the epoch second when it will be.

    Adapters `written` (uids) by this plan anyway say it there, and those without any verdict have nowhere to.
    """
    stale = [
        (shown, each)
        for each in snapshot.adapters
        if not each.meta.deleting and each.meta.uid not in written and each.status.conditions
        if (shown := shown_popularity(each, snapshot)) != each.status.popularity
    ]
    if not stale:
        return [], None
    due = snapshot.memory.popularity_told + TELL_SECONDS
    if due > now:
        return [], due
    shown, adapter = min(stale, key=lambda each: (-_heat(*each), each[1].meta.uid))
    status = adapter.status.model_copy(update={"popularity": shown})
    meta = adapter.meta
    return [StatusWrite("LoraAdapter", meta.namespace, meta.name, meta.uid, status)], None


def _heat(shown: PopularityStatus | None, adapter: Adapter) -> int:
    """The larger of what a status says and what it should."""
    return max(each.requests if each else -1 for each in (shown, adapter.status.popularity))
