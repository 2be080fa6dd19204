"""The routing table: what a model name means to a tenant. Built anew from records by shell/gateway.py on each change.

Own adapters win over shared ones, then the oldest wins; the base's name and aliases are reserved, whoever may call it.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from lorafleet_contracts.names import BASE_MODEL, MERGED_PREFIX, SHARED_SET, is_dedicated
from lorafleet_contracts.resources.tenancy import Tenancy
from lorafleet_contracts.selectors import admits, matches
from lorafleet_contracts.tenancy import TenantClaim, refuse_tenants
from lorafleet_gateway.core.records import Adapter, Model, ObjectKey, Pool, Replica, Slice, Tenant
from lorafleet_gateway.core.rejections import model_not_found

Labels = Mapping[str, str]
NO_CAPS: Final = Tenancy()
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Records:
    """All records as the watches have them, each by (namespace, name); `namespaces` gives their labels."""

    pools: Mapping[ObjectKey, Pool] = field(default_factory=dict)
    adapters: Mapping[ObjectKey, Adapter] = field(default_factory=dict)
    tenants: Mapping[ObjectKey, Tenant] = field(default_factory=dict)
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    slices: Mapping[ObjectKey, Slice] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetKey:
    """One set of replicas of one pool."""

    pool: ObjectKey
    set: str


@dataclass(frozen=True, slots=True)
class AdapterIndex:
    """The adapters, found without looking at those of other tenants; every tuple is oldest first."""

    by_key: Mapping[ObjectKey, Adapter]
    own: Mapping[tuple[ObjectKey, str], tuple[Adapter, ...]]
    """By pool and namespace."""
    own_by_model: Mapping[tuple[ObjectKey, str, str], tuple[Adapter, ...]]
    """By pool, namespace and model name."""
    shared_by_model: Mapping[tuple[ObjectKey, str], tuple[Adapter, ...]]
    """Those shared with other namespaces, by pool and model name."""


@dataclass(frozen=True, slots=True)
class Table:
    """One immutable view of everything; `build_table` makes it."""

    pools: Mapping[ObjectKey, Pool]
    tenants: Mapping[ObjectKey, Tenant]
    namespaces: Mapping[str, Labels]
    adapters: AdapterIndex
    sets: Mapping[SetKey, tuple[Replica, ...]]
    """Replicas that may get requests; a pool has its shared set even while that is empty."""
    replicas: Mapping[Replica, ObjectKey]
    """All replicas to look at, those not ready yet among them, and their pool."""
    excess: Mapping[ObjectKey, str]
    """Tenants that ask for more than their pool leaves for their namespace, and why."""

    def hosts(self) -> dict[ObjectKey, tuple[Replica, ...]]:
        """The replicas of all of a pool's sets that may get requests, for every pool."""
        hosts: dict[ObjectKey, tuple[Replica, ...]] = {}
        for key, replicas in sorted(self.sets.items(), key=lambda each: each[0].set):
            hosts[key.pool] = hosts.get(key.pool, ()) + replicas
        return hosts

    def resolve(self, tenant: Tenant, name: str) -> Model:
        """What `name` means to `tenant`. Raises Rejection (404), the same for a missing and a foreign name."""
        pool = self._pool_of(tenant)
        if pool is None:
            raise model_not_found(name)
        if name == pool.base or name in pool.aliases:
            if not tenant.base:
                raise model_not_found(name)
            return _base_model(pool, name, tenant)
        adapter = self._choose(tenant, pool, name)
        if adapter is None:
            raise model_not_found(name)
        return _adapter_model(pool, adapter, tenant)

    def list_models(self, tenant: Tenant) -> Iterator[Model]:
        """Everything that `tenant` may call: the base by its published name first, then adapters by name."""
        pool = self._pool_of(tenant)
        if pool is None:
            return
        if tenant.base:
            yield _base_model(pool, pool.base, tenant)
        named = (self.adapters.by_key.get(_split(name)) for name in tenant.names if "/" in name)
        own = self.adapters.own.get((pool.key, tenant.key[0]), ())
        names = {each.model for each in (*own, *named) if each is not None}
        for name in sorted(names - pool.aliases - {pool.base}):
            adapter = self._choose(tenant, pool, name)
            if adapter is not None:
                yield _adapter_model(pool, adapter, tenant)

    def _pool_of(self, tenant: Tenant) -> Pool | None:
        """The tenant's pool, provided it exists and admits the tenant's namespace."""
        pool = self.pools.get(tenant.pool)
        return pool if pool is not None and self._admitted(pool, tenant.key[0]) else None

    def _choose(self, tenant: Tenant, pool: Pool, name: str) -> Adapter | None:
        own = self.adapters.own_by_model.get((pool.key, tenant.key[0], name), ())
        shared = self.adapters.shared_by_model.get((pool.key, name), ())
        return next((each for each in (*own, *shared) if self._may_call(tenant, pool, each)), None)

    def _may_call(self, tenant: Tenant, pool: Pool, adapter: Adapter) -> bool:
        namespace, name = adapter.key
        if not self._admitted(pool, namespace):
            return False
        named = f"{namespace}/{name}" in tenant.names
        if namespace == tenant.key[0]:
            selected = tenant.selector is not None and matches(tenant.selector, dict(adapter.labels))
            return named or name in tenant.names or selected
        labels = self.namespaces.get(tenant.key[0], {})
        return named and adapter.shared_with is not None and matches(adapter.shared_with, labels)

    def _admitted(self, pool: Pool, namespace: str) -> bool:
        return admits(pool.allowed, pool.key[0], namespace, self.namespaces.get(namespace, {}))


def build_table(records: Records) -> Table:
    """Index the records. Costs time linear in the adapters (10,000 take about 30 ms)."""
    return Table(
        pools=dict(records.pools),
        tenants=dict(records.tenants),
        namespaces=dict(records.namespaces),
        adapters=_index_adapters(records.adapters),
        sets=_group_sets(records),
        replicas={
            replica: each.pool
            for each in records.slices.values()
            if each.pool in records.pools
            for replica in each.ready + each.waiting
        },
        excess=_find_excess(records),
    )


def _find_excess(records: Records) -> dict[ObjectKey, str]:
    claims: dict[ObjectKey, list[TenantClaim]] = {}
    for tenant in records.tenants.values():
        pool, namespace = records.pools.get(tenant.pool), tenant.key[0]
        if pool is None or pool.tenancy == NO_CAPS:
            continue
        admitted = admits(pool.allowed, pool.key[0], namespace, records.namespaces.get(namespace, {}))
        if admitted and tenant.claim is not None:
            claims.setdefault(tenant.pool, []).append(tenant.claim)
    return {
        key: why
        for pool, found in claims.items()
        for key, why in refuse_tenants(records.pools[pool].tenancy, found).items()
    }


def _index_adapters(adapters: Mapping[ObjectKey, Adapter]) -> AdapterIndex:
    oldest_first = sorted(adapters.values(), key=lambda each: (each.created, each.key))
    return AdapterIndex(
        by_key=dict(adapters),
        own=_group(oldest_first, lambda each: (each.pool, each.key[0])),
        own_by_model=_group(oldest_first, lambda each: (each.pool, each.key[0], each.model)),
        shared_by_model=_group(
            [each for each in oldest_first if each.shared_with is not None], lambda each: (each.pool, each.model)
        ),
    )


def _group(adapters: Iterable[Adapter], key: Callable[[Adapter], K]) -> dict[K, tuple[Adapter, ...]]:
    groups: dict[K, list[Adapter]] = {}
    for adapter in adapters:
        groups.setdefault(key(adapter), []).append(adapter)
    return {name: tuple(found) for name, found in groups.items()}


def _split(name: str) -> ObjectKey:
    namespace, _, bare = name.partition("/")
    return namespace, bare


def _group_sets(records: Records) -> dict[SetKey, tuple[Replica, ...]]:
    sets: dict[SetKey, set[Replica]] = {SetKey(pool, SHARED_SET): set() for pool in records.pools}
    for each in records.slices.values():
        if each.pool in records.pools:
            sets.setdefault(SetKey(each.pool, each.set), set()).update(each.ready)
    return {key: tuple(sorted(found, key=lambda each: each.serving)) for key, found in sets.items()}


def _base_model(pool: Pool, name: str, tenant: Tenant) -> Model:
    # An engine with an adapter in its weights has no base any more.
    own = None if tenant.set is not None and tenant.set.startswith(MERGED_PREFIX) else tenant.set
    return Model(name, BASE_MODEL, pool.created, pool.key[0], None, _sets(tenant, own, SHARED_SET))


def _adapter_model(pool: Pool, adapter: Adapter, tenant: Tenant) -> Model:
    # Another tenant's own set is not for this one, though the adapter is at home there.
    home = SHARED_SET if is_dedicated(adapter.set) and adapter.set != tenant.own else adapter.set
    sets = _sets(tenant, tenant.set, home)
    return Model(adapter.model, adapter.version, adapter.created, adapter.key[0], pool.base, sets)


def _sets(tenant: Tenant, own: str | None, home: str) -> tuple[str, ...]:
    """The sets to ask: the tenant's own, where the version is at home, and the shared one as the last resort.

    An isolated tenant's requests run on its own replicas or not at all.
    """
    if tenant.isolated:
        return () if own is None else (own,)
    return tuple(dict.fromkeys(name for name in (own, home, SHARED_SET) if name is not None))
