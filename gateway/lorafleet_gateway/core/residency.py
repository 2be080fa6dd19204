"""What one engine said about itself, folded from its state port's deltas. Called by shell/states.py for each answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from lorafleet_contracts.admin import RoutingState, Tier, VersionPhase


@dataclass(frozen=True, slots=True)
class EngineView:
    """One replica as it last described itself: `versions` it can serve now, by `{uid}@{digest}`, with their tier."""

    boot_id: str
    seq: int
    serves_base: bool
    draining: bool
    load: int
    versions: Mapping[str, Tier]


def fold(view: EngineView | None, state: RoutingState) -> EngineView:
    """Apply an answer of the state port to what was known. A full answer replaces it."""
    versions = {} if state.full or view is None else dict(view.versions)
    for key in state.removed:
        versions.pop(key, None)
    for version in state.versions:
        if version.phase is VersionPhase.RESIDENT:
            versions[version.key] = version.tier
        else:
            versions.pop(version.key, None)
    return EngineView(
        boot_id=state.boot_id,
        seq=state.seq,
        serves_base=state.ready,
        draining=state.draining,
        load=state.in_flight + state.queue,
        versions=versions,
    )
