"""The routing table: what a model name means to a tenant. Built anew from records by shell/gateway.py on each change.

Own adapters win over shared ones, then the oldest wins; the base's name and aliases are reserved, whoever may call it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lorafleet_contracts.names import BASE_MODEL, SHARED_SET
from lorafleet_contracts.selectors import admits, matches
from lorafleet_gateway.core.records import Adapter, Model, ObjectKey, Pool, Replica, Slice, Tenant
from lorafleet_gateway.core.rejections import model_not_found

Labels = Mapping[str, str]


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
class Table:
    """One immutable view of everything; `build_table` makes it."""

    pools: Mapping[ObjectKey, Pool]
    tenants: Mapping[ObjectKey, Tenant]
    namespaces: Mapping[str, Labels]
    models: Mapping[ObjectKey, Mapping[str, tuple[Adapter, ...]]]
    """By pool, by model name: candidates, oldest first."""
    sets: Mapping[SetKey, tuple[Replica, ...]]
    """Replicas that may get requests; a pool has its shared set even while that is empty."""
    replicas: Mapping[Replica, ObjectKey]
    """All replicas to look at, those not ready yet among them, and their pool."""

    def resolve(self, tenant: Tenant, name: str) -> Model:
        """What `name` means to `tenant`. Raises Rejection (404), the same for a missing and a foreign name."""
        pool = self._pool_of(tenant)
        if pool is None:
            raise model_not_found(name)
        if name == pool.base or name in pool.aliases:
            if not tenant.base:
                raise model_not_found(name)
            return _base_model(pool, name)
        adapter = self._choose(tenant, self.models.get(pool.key, {}).get(name, ()))
        if adapter is None:
            raise model_not_found(name)
        return _adapter_model(pool, adapter)

    def list_models(self, tenant: Tenant) -> Iterator[Model]:
        """Everything that `tenant` may call: the base by its published name first, then adapters by name."""
        pool = self._pool_of(tenant)
        if pool is None:
            return
        if tenant.base:
            yield _base_model(pool, pool.base)
        reserved = pool.aliases | {pool.base}
        for name, candidates in sorted(self.models.get(pool.key, {}).items()):
            adapter = None if name in reserved else self._choose(tenant, candidates)
            if adapter is not None:
                yield _adapter_model(pool, adapter)

    def _pool_of(self, tenant: Tenant) -> Pool | None:
        """The tenant's pool, provided it exists and admits the tenant's namespace."""
        pool = self.pools.get(tenant.pool)
        return pool if pool is not None and self._admitted(pool, tenant.key[0]) else None

    def _choose(self, tenant: Tenant, candidates: tuple[Adapter, ...]) -> Adapter | None:
        allowed = [each for each in candidates if self._may_call(tenant, each)]
        own = (each for each in allowed if each.key[0] == tenant.key[0])
        return next(own, allowed[0] if allowed else None)

    def _may_call(self, tenant: Tenant, adapter: Adapter) -> bool:
        pool = self.pools.get(adapter.pool)
        if pool is None or not self._admitted(pool, adapter.key[0]):
            return False
        namespace, name = adapter.key
        named = f"{namespace}/{name}" in tenant.names
        if namespace == tenant.key[0]:
            selected = tenant.selector is not None and matches(tenant.selector, dict(adapter.labels))
            return named or name in tenant.names or selected
        labels = self.namespaces.get(tenant.key[0], {})
        return named and adapter.shared_with is not None and matches(adapter.shared_with, labels)

    def _admitted(self, pool: Pool, namespace: str) -> bool:
        return admits(pool.allowed, pool.key[0], namespace, self.namespaces.get(namespace, {}))


def build_table(records: Records) -> Table:
    """Index the records. Costs time linear in the adapters (10,000 take about 10 ms)."""
    models: defaultdict[ObjectKey, defaultdict[str, list[Adapter]]] = defaultdict(lambda: defaultdict(list))
    for adapter in sorted(records.adapters.values(), key=lambda each: (each.created, each.key)):
        models[adapter.pool][adapter.model].append(adapter)
    return Table(
        pools=dict(records.pools),
        tenants=dict(records.tenants),
        namespaces=dict(records.namespaces),
        models={
            pool: {name: tuple(candidates) for name, candidates in by_name.items()} for pool, by_name in models.items()
        },
        sets=_group_sets(records),
        replicas={
            replica: each.pool
            for each in records.slices.values()
            if each.pool in records.pools
            for replica in each.ready + each.waiting
        },
    )


def _group_sets(records: Records) -> dict[SetKey, tuple[Replica, ...]]:
    sets: dict[SetKey, set[Replica]] = {SetKey(pool, SHARED_SET): set() for pool in records.pools}
    for each in records.slices.values():
        if each.pool in records.pools:
            sets.setdefault(SetKey(each.pool, each.set), set()).update(each.ready)
    return {key: tuple(sorted(found, key=lambda each: each.serving)) for key, found in sets.items()}


def _base_model(pool: Pool, name: str) -> Model:
    return Model(name, BASE_MODEL, pool.created, pool.key[0], None)


def _adapter_model(pool: Pool, adapter: Adapter) -> Model:
    return Model(adapter.model, adapter.version, adapter.created, adapter.key[0], pool.base)
