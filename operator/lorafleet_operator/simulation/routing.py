"""Which replica takes a request, as the gateway decides: the right set, the nearest tier, the least outstanding work.

Called by the run for every arrival; `forget` after anything that may have moved.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lorafleet_contracts.admin import Tier, VersionPhase
from lorafleet_contracts.names import BASE_MODEL, SHARED_SET, version_key
from lorafleet_operator.core.dedication import routed_set
from lorafleet_operator.simulation.cluster import Cluster, Pod
from lorafleet_operator.simulation.engines import Engine
from lorafleet_operator.simulation.traffic import Caller

_TIERS = (Tier.GPU, Tier.HOST, Tier.DISK)


@dataclass(frozen=True, slots=True)
class Pick:
    """Where a request goes, the version that it gets, and the tier that this version is on there."""

    engine: Engine
    version: str
    tier: Tier


_Holders: TypeAlias = tuple[str, Tier, Sequence[Engine]]


class Router:
    """Picks among the replicas that have the version that serves."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._holders: dict[Caller, _Holders | None] = {}
        self._own_sets: dict[str, tuple[str, bool]] = {}

    def forget(self) -> None:
        """Look at the cluster anew from the next request on."""
        self._holders.clear()
        self._own_sets.clear()

    def pick(self, caller: Caller, now: float) -> Pick | None:
        """The replica for a request of an adapter; None where no version answers (503 adapter_not_ready)."""
        if caller not in self._holders:
            self._holders[caller] = self._look(caller)
        found = self._holders[caller]
        if found is None:
            return None
        version, tier, engines = found
        best = min(engines, key=lambda each: (each.outstanding(now), each.served, each.name))
        return Pick(best, version, tier)

    def _look(self, caller: Caller) -> _Holders | None:
        """Holders in the tenant's own set once it is cut over, else in the adapter's home, else in any set."""
        version, home = self._target(caller.adapter)
        if version is None:
            return None
        pods = [pod for pod in self._cluster.pods() if pod.engine is not None and not pod.engine.draining]
        own, isolated = self._own_set(caller.tenant)
        for name in (own,) if isolated else (own, home, SHARED_SET):
            found = _nearest(version, (pod for pod in pods if pod.set == name))
            if found is not None:
                return found
        return None if isolated else _nearest(version, pods)

    def _target(self, uid: str) -> tuple[str | None, str]:
        """The version that serves, and its home set."""
        if uid == BASE_MODEL:
            return BASE_MODEL, SHARED_SET
        status = self._cluster.adapters[uid].status
        return version_key(uid, status.digest) if status.digest else None, status.set or SHARED_SET

    def _own_set(self, tenant: str) -> tuple[str, bool]:
        """A tenant's own set once it is cut over, and whether its requests go there or nowhere."""
        if not self._own_sets:
            for each in self._cluster.tenants.values():
                own, isolated = routed_set(each.status.promotion) or "", each.status.isolation == "Dedicated"
                self._own_sets[f"{each.meta.namespace}/{each.meta.name}"] = own, isolated
        return self._own_sets.get(tenant, ("", False))


def _nearest(version: str, pods: Iterable[Pod]) -> _Holders | None:
    """The engines that have a version on the nearest tier that any has it on."""
    holders: dict[Tier, list[Engine]] = {}
    for pod in pods:
        engine = pod.engine
        if engine is None:
            continue
        if version == BASE_MODEL or engine.merged_version == version:
            if (version == BASE_MODEL) == (engine.merged_version is None):
                holders.setdefault(Tier.GPU, []).append(engine)
            continue
        found = engine.versions.get(version)
        if found is not None and found.phase == VersionPhase.RESIDENT:
            holders.setdefault(found.tier, []).append(engine)
    nearest = next((tier for tier in _TIERS if tier in holders), None)
    return None if nearest is None else (version, nearest, holders[nearest])
