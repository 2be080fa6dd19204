"""Takes the frozen picture that a plan is made from. Called by the pools' tasks; changes nothing."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lorafleet_operator.core.port_keys import PortKeys
from lorafleet_operator.core.snapshot import (
    EngineDefaults,
    InspectionKey,
    Meta,
    OrphanSnapshot,
    PoolSnapshot,
    PoolTls,
    PoolTokens,
    Replica,
    Workload,
)
from lorafleet_operator.shell.calls import PoolCalls
from lorafleet_operator.shell.engines import EngineLinks
from lorafleet_operator.shell.load import LoadMeter
from lorafleet_operator.shell.objects import AppliedObjects
from lorafleet_operator.shell.records import PodRecord, PoolKey, SetRecord
from lorafleet_operator.shell.statuses import StatusQueue
from lorafleet_operator.shell.watches import Watches

TlsOf = Callable[[Meta], PoolTls]
"""What the engines of a pool are to speak TLS with."""


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What one pool's task keeps between its plans."""

    calls: PoolCalls
    objects: AppliedObjects
    statuses: StatusQueue
    load: LoadMeter

    async def close(self) -> None:
        """End what runs."""
        await self.calls.close()
        await self.statuses.close()


class Observer:
    """Everything that can be seen of pools and their engines."""

    def __init__(self, watches: Watches, links: EngineLinks, defaults: EngineDefaults, cluster_wide: bool) -> None:
        self._watches = watches
        self._links = links
        self._defaults = defaults
        self._cluster_wide = cluster_wide

    def pool_exists(self, key: PoolKey) -> bool:
        """Whether there is such a pool."""
        return self._watches.pool(key) is not None

    def heard_of_engines(self, key: PoolKey) -> bool:
        """Whether every ready engine of a pool has been asked for its state once."""
        return all(self._links.tried(pod.uid) for pod in self._watches.pods_of(key) if pod.ready)

    def pod(self, key: PoolKey, name: str) -> PodRecord | None:
        """One engine pod of a pool."""
        return next((pod for pod in self._watches.pods_of(key) if pod.name == name), None)

    def tokens(self, key: PoolKey, keys: PortKeys) -> PoolTokens | None:
        """A pool's tokens."""
        pool = self._watches.pool(key)
        return keys.tokens_for(pool.meta.uid) if pool else None

    def shown_certificates(self) -> Iterator[tuple[Meta, str | None]]:
        """For each engine pod with TLS of an existing pool: the pool, and the certificate that its engine shows."""
        for pod in self._watches.pods():
            pool = self._watches.pool(pod.pool)
            if pool is not None and pod.server_name and not pod.deleting:
                state = self._links.state(pod.uid)
                yield pool.meta, state.certificate.fingerprint if state and state.certificate else None

    def observe_pool(self, key: PoolKey, keys: PortKeys, memory: PoolMemory, tls_of: TlsOf) -> PoolSnapshot | None:
        """The picture of one pool, None when it is gone."""
        pool = self._watches.pool(key)
        if pool is None:
            return None
        adapters = self._watches.adapters_of(key)
        found = self._watches.sets_of(key)
        sets = {each.set: each for each in found if each.owner == pool.meta.uid}
        replicas = tuple(self._replica(pod, sets.get(pod.set)) for pod in self._watches.pods_of(key))
        living = {InspectionKey(each.meta.uid, each.meta.generation) for each in adapters}
        lives = {(each.name, each.state.boot_id) for each in replicas if each.state is not None}
        memory.calls.prune(living, lives)
        return PoolSnapshot(
            pool=pool,
            adapters=adapters,
            tenants=self._watches.tenants_of(key),
            replicas=replicas,
            namespaces=self._watches.namespaces(),
            defaults=self._defaults,
            tokens=keys.tokens_for(pool.meta.uid),
            tls=tls_of(pool.meta),
            workloads={name: _workload(each) for name, each in sets.items()},
            applied=memory.objects.standing(found),
            refusals=memory.objects.refusals(),
            memory=replace(memory.calls.memory(), popularity_told=memory.load.told_at(time.time())),
            cluster_wide=self._cluster_wide,
        )

    def observe_orphans(self) -> OrphanSnapshot:
        """Adapters and tenants whose pool does not exist."""
        pools = self._watches.orphaned_pools()
        return OrphanSnapshot(
            tuple(each for pool in pools for each in self._watches.adapters_of(pool)),
            tuple(each for pool in pools for each in self._watches.tenants_of(pool)),
        )

    def _replica(self, pod: PodRecord, workload: SetRecord | None) -> Replica:
        node = self._watches.node(pod.node)
        return Replica(
            name=pod.name,
            ready=pod.ready,
            deleting=pod.deleting,
            current=workload is not None and pod.template == workload.template,
            state=self._links.state(pod.uid),
            waiting=pod.waiting,
            message=pod.message,
            set=pod.set,
            node=pod.node,
            zone=node.zone if node else "",
            cordoned=node.cordoned if node else None,
        )


def _workload(record: SetRecord) -> Workload:
    return Workload(record.replicas, record.settled, record.observed, record.rolled_out, record.partition)
