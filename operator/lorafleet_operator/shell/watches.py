"""What the API server holds, kept up to date: all three kinds, namespaces, nodes, engine pods and their StatefulSets.

Filled by reflectors from start-up on (a standby stays warm); read by observe.py. Tells `Listener` what was touched and
decides nothing. Answers of our own writes are learnt at once, so that no plan is made on a status it has replaced.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from lorafleet_contracts.names import LABEL_POOL
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolStatus
from lorafleet_contracts.resources.tenant import TenantStatus
from lorafleet_kube.api import KubeApi
from lorafleet_kube.paths import NAMESPACES, NODES, PODS, Kind
from lorafleet_kube.reflector import Change, Collection, Key, Reflector
from lorafleet_operator.core.actions import StatusWrite
from lorafleet_operator.core.snapshot import Adapter, Pool, Tenant
from lorafleet_operator.shell import records
from lorafleet_operator.shell.kinds import LORA_ADAPTERS, LORA_POOLS, STATEFUL_SETS, TENANTS
from lorafleet_operator.shell.records import NodeRecord, PodRecord, PoolKey, Seen, SetRecord

T = TypeVar("T")
R = TypeVar("R", Pool, Adapter, Tenant)


class Listener(Protocol):
    """Who wants to know."""

    def pool_touched(self, pool: PoolKey) -> None:
        """Something that belongs to a pool (or to a name that is no pool) has changed."""

    def all_touched(self) -> None:
        """Something that may concern every pool has changed."""

    def pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """An engine pod came, changed or went."""


class Index(Generic[T]):
    """Records by the pool they belong to."""

    def __init__(self) -> None:
        self._pools: dict[Key, PoolKey] = {}
        self._records: dict[PoolKey, dict[Key, T]] = {}

    def get(self, key: Key) -> T | None:
        """One record."""
        pool = self._pools.get(key)
        return None if pool is None else self._records[pool][key]

    def of(self, pool: PoolKey) -> list[T]:
        """A pool's records."""
        return list(self._records.get(pool, {}).values())

    def pools(self) -> list[PoolKey]:
        """Pools (existing or not) that have records."""
        return list(self._records)

    def put(self, key: Key, pool: PoolKey, record: T) -> None:
        """Add or replace a record."""
        self.drop(key)
        self._pools[key] = pool
        self._records.setdefault(pool, {})[key] = record

    def drop(self, key: Key) -> None:
        """Forget a record, if it is there."""
        pool = self._pools.pop(key, None)
        if pool is not None:
            del self._records[pool][key]
            if not self._records[pool]:
                del self._records[pool]


class Watches:
    """The operator's picture of the API server. `run` fills it; the other methods read it."""

    def __init__(self, api: KubeApi, namespaces: Sequence[str], listener: Listener) -> None:
        self._listener = listener
        self._pools: Index[Seen[Pool]] = Index()
        self._adapters: Index[Seen[Adapter]] = Index()
        self._tenants: Index[Seen[Tenant]] = Index()
        self._pods: Index[PodRecord] = Index()
        self._sets: Index[SetRecord] = Index()
        self._namespaces = Reflector(
            api, Collection(NAMESPACES.path()), records.read_namespace, self._namespace_changed
        )
        self._nodes = Reflector(api, Collection(NODES.path()), records.read_node, self._node_changed, optional=True)
        self._reflectors: list[Reflector[Any]] = [self._namespaces, self._nodes]
        engines = LABEL_POOL
        scopes: Sequence[str | None] = namespaces or [None]
        for scope in scopes:
            self._watch(api, (LORA_POOLS, scope, ""), records.read_pool, self._changed(self._pools, _own_key))
            self._watch(api, (LORA_ADAPTERS, scope, ""), records.read_adapter, self._changed(self._adapters, _pool_of))
            self._watch(api, (TENANTS, scope, ""), records.read_tenant, self._changed(self._tenants, _pool_of))
            self._watch(api, (PODS, scope, engines), records.read_pod, self._pod_changed)
            self._watch(api, (STATEFUL_SETS, scope, engines), records.read_set, self._set_changed)

    def _watch(
        self,
        api: KubeApi,
        what: tuple[Kind, str | None, str],
        project: Callable[[dict[str, Any]], T],
        on_change: Callable[[Change[T]], None],
    ) -> None:
        kind, scope, selector = what
        self._reflectors.append(Reflector(api, Collection(kind.path(scope), selector), project, on_change))

    async def run(self) -> None:
        """Watch for ever; cancel to stop."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    async def wait_synced(self) -> None:
        """Return after the first full list of everything."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    @property
    def synced(self) -> bool:
        """Whether everything was listed once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def pool(self, key: PoolKey) -> Pool | None:
        """One pool."""
        found = self._pools.get(key)
        return found.value if found else None

    def pool_uid(self, key: PoolKey) -> str | None:
        """One pool's uid."""
        found = self._pools.get(key)
        return found.value.meta.uid if found else None

    def pool_keys(self) -> list[PoolKey]:
        """All pools."""
        return self._pools.pools()

    def adapters_of(self, pool: PoolKey) -> tuple[Adapter, ...]:
        """Adapters that point to a pool, existing or not."""
        return tuple(each.value for each in self._adapters.of(pool))

    def tenants_of(self, pool: PoolKey) -> tuple[Tenant, ...]:
        """Tenants that point to a pool, existing or not."""
        return tuple(each.value for each in self._tenants.of(pool))

    def pods_of(self, pool: PoolKey) -> list[PodRecord]:
        """A pool's engine pods."""
        return sorted(self._pods.of(pool), key=lambda each: each.name)

    def pods(self) -> list[PodRecord]:
        """All engine pods."""
        return [pod for pool in self._pods.pools() for pod in self._pods.of(pool)]

    def sets_of(self, pool: PoolKey) -> list[SetRecord]:
        """A pool's StatefulSets."""
        return self._sets.of(pool)

    def node(self, name: str) -> NodeRecord | None:
        """One node, None where there is none or nodes can't be read."""
        return self._nodes.records.get(("", name))

    def orphaned_pools(self) -> list[PoolKey]:
        """Names that adapters or tenants point to and no pool has."""
        pointed = {*self._adapters.pools(), *self._tenants.pools()}
        return sorted(pool for pool in pointed if self._pools.get(pool) is None)

    def namespaces(self) -> dict[str, dict[str, str]]:
        """Labels of all namespaces by name."""
        return {name: labels for (_, name), labels in self._namespaces.records.items()}

    def revision(self, write: StatusWrite) -> int | None:
        """The resource version, as it is known now, of the object that a verdict is about; None when it is gone."""
        key = (write.namespace, write.name)
        seen: Seen[Pool] | Seen[Adapter] | Seen[Tenant] | None
        if write.kind == "LoraPool":
            seen = self._pools.get(key)
        elif write.kind == "LoraAdapter":
            seen = self._adapters.get(key)
        else:
            seen = self._tenants.get(key)
        return seen.revision if seen is not None and seen.value.meta.uid == write.uid else None

    def learn(self, kind: str, found: dict[str, Any]) -> None:
        """Take the answer of a status write; ignored when the object is gone or newer here."""
        key = (found["metadata"]["namespace"], found["metadata"]["name"])
        if kind == "LoraPool":
            _renew(self._pools, key, records.read_pool(found), _own_key)
        elif kind == "LoraAdapter":
            _renew(self._adapters, key, records.read_adapter(found), _pool_of)
        else:
            _renew(self._tenants, key, records.read_tenant(found), _pool_of)

    def _changed(self, index: Index[Seen[R]], pool_of: Callable[[R], PoolKey]) -> Callable[[Change[Seen[R]]], None]:
        def take(change: Change[Seen[R]]) -> None:
            before = index.get(change.key)
            if change.new is None:
                index.drop(change.key)
            elif before is not None and change.new.revision < before.revision:
                return
            else:
                index.put(change.key, pool_of(change.new.value), change.new)
            if (
                before is None
                or change.new is None
                or _without_status(before.value) != _without_status(change.new.value)
            ):
                for touched in {pool_of(each.value) for each in (before, change.new) if each is not None}:
                    self._listener.pool_touched(touched)

        return take

    def _pod_changed(self, change: Change[PodRecord]) -> None:
        if change.new is None:
            self._pods.drop(change.key)
        else:
            self._pods.put(change.key, change.new.pool, change.new)
        self._listener.pod_changed(change.old, change.new)
        self._touch(change)

    def _set_changed(self, change: Change[SetRecord]) -> None:
        if change.new is None:
            self._sets.drop(change.key)
        else:
            self._sets.put(change.key, change.new.pool, change.new)
        self._touch(change)

    def _touch(self, change: Change[PodRecord] | Change[SetRecord]) -> None:
        for record in {each.pool for each in (change.old, change.new) if each is not None}:
            self._listener.pool_touched(record)

    def _node_changed(self, change: Change[NodeRecord]) -> None:
        """Only nodes with engines count. A pod that comes is news by itself."""
        _, name = change.key
        for pool in {pod.pool for pod in self.pods() if pod.node == name}:
            self._listener.pool_touched(pool)

    def _namespace_changed(self, change: Change[dict[str, str]]) -> None:
        self._listener.all_touched()


def _own_key(pool: Pool) -> PoolKey:
    return pool.meta.namespace, pool.meta.name


def _pool_of(record: Adapter | Tenant) -> PoolKey:
    return record.pool


def _renew(index: Index[Seen[R]], key: Key, new: Seen[R], pool_of: Callable[[R], PoolKey]) -> None:
    before = index.get(key)
    if before is not None and before.value.meta.uid == new.value.meta.uid and before.revision < new.revision:
        index.put(key, pool_of(new.value), new)


def _without_status(record: Pool | Adapter | Tenant) -> Pool | Adapter | Tenant:
    """Our own status writes come back as events; they are no news."""
    if isinstance(record, Pool):
        return replace(record, status=LoraPoolStatus())
    if isinstance(record, Adapter):
        return replace(record, status=LoraAdapterStatus())
    return replace(record, status=TenantStatus())
