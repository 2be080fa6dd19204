"""Which replica takes a request, as the gateway decides: nearest tier first, then the least outstanding work.

Called by the run for every arrival; `forget` after anything that may have moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lorafleet_contracts.admin import Tier, VersionPhase
from lorafleet_contracts.names import BASE_MODEL, version_key
from lorafleet_operator.core.snapshot import Adapter
from lorafleet_operator.simulation.cluster import Cluster
from lorafleet_operator.simulation.engines import Engine

_TIERS = (Tier.GPU, Tier.HOST, Tier.DISK)


@dataclass(frozen=True, slots=True)
class Pick:
    """Where a request goes, the version that it gets, and the tier that this version is on there."""

    engine: Engine
    version: str
    tier: Tier


class Router:
    """Picks among the replicas that have the version that serves."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._holders: dict[str, tuple[str, Tier, Sequence[Engine]] | None] = {}

    def forget(self) -> None:
        """Look at the cluster anew from the next request on."""
        self._holders.clear()

    def pick(self, uid: str, now: float) -> Pick | None:
        """The replica for a request of an adapter; None where no version answers (503 adapter_not_ready)."""
        if uid not in self._holders:
            self._holders[uid] = self._base() if uid == BASE_MODEL else self._look(self._cluster.adapters[uid])
        found = self._holders[uid]
        if found is None:
            return None
        version, tier, engines = found
        best = min(engines, key=lambda each: (each.outstanding(now), each.served, each.name))
        return Pick(best, version, tier)

    def _base(self) -> tuple[str, Tier, Sequence[Engine]] | None:
        engines = [pod.engine for pod in self._cluster.pods() if pod.engine and not pod.engine.draining]
        return (BASE_MODEL, Tier.GPU, engines) if engines else None

    def _look(self, adapter: Adapter) -> tuple[str, Tier, Sequence[Engine]] | None:
        if adapter.status.digest is None:
            return None
        key = version_key(adapter.meta.uid, adapter.status.digest)
        holders: dict[Tier, list[Engine]] = {}
        for pod in self._cluster.pods():
            engine = pod.engine
            version = engine.versions.get(key) if engine else None
            if engine is None or version is None or engine.draining or version.phase != VersionPhase.RESIDENT:
                continue
            holders.setdefault(version.tier, []).append(engine)
        nearest = next((tier for tier in _TIERS if tier in holders), None)
        return None if nearest is None else (key, nearest, holders[nearest])
