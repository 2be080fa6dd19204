"""The verdict on one tenant: does the pool admit it, has it a key, do its names resolve? Called by the planning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lorafleet_contracts.conditions import ConditionType, Reason
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_contracts.resources.tenancy import Tenancy
from lorafleet_contracts.resources.tenant import TenantSpec, TenantStatus
from lorafleet_contracts.selectors import admits, matches
from lorafleet_contracts.tenancy import TenantClaim, refuse_tenants
from lorafleet_operator.core.admission import refuse_excess, refuse_missing_pool, refuse_namespace
from lorafleet_operator.core.conditions import Draft, Refusal, parse_timestamp, settle
from lorafleet_operator.core.snapshot import Adapter, Meta, PoolSnapshot, Tenant

T = ConditionType
_NAMES_SHOWN = 5

Labels = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class AdapterIndex:
    """The pool's adapters by namespace and name."""

    by_name: Mapping[tuple[str, str], Adapter] = field(default_factory=dict)
    by_namespace: Mapping[str, Sequence[Adapter]] = field(default_factory=dict)


def index_adapters(adapters: Sequence[Adapter]) -> AdapterIndex:
    """Prepare lookups for all tenants of a plan."""
    by_namespace: dict[str, list[Adapter]] = {}
    for adapter in adapters:
        by_namespace.setdefault(adapter.meta.namespace, []).append(adapter)
    return AdapterIndex({(each.meta.namespace, each.meta.name): each for each in adapters}, by_namespace)


def is_admitted(tenant: Tenant, pool: Meta, spec: LoraPoolSpec, namespaces: Labels) -> bool:
    """Whether the pool admits the tenant's namespace."""
    namespace = tenant.meta.namespace
    return admits(spec.allowed_namespaces, pool.namespace, namespace, namespaces.get(namespace, {}))


def refuse_excessive_tenants(snapshot: PoolSnapshot, spec: LoraPoolSpec) -> dict[str, Refusal]:
    """Uids of the tenants that ask for more than the pool leaves for their namespace, and why."""
    if spec.tenancy == Tenancy():
        return {}
    pool = snapshot.pool.meta
    asking = {
        (each.meta.namespace, each.meta.name): each
        for each in snapshot.tenants
        if not each.meta.deleting and is_admitted(each, pool, spec, snapshot.namespaces)
    }
    claims = [
        TenantClaim(key, each.meta.created, each.spec.limits, each.spec.isolation, each.spec.weight)
        for key, each in asking.items()
        if each.spec is not None
    ]
    refused = refuse_tenants(spec.tenancy, claims)
    return {asking[key].meta.uid: refuse_excess(pool, why) for key, why in refused.items()}


def judge_tenant(
    tenant: Tenant,
    pool: tuple[Meta, LoraPoolSpec],
    index: AdapterIndex,
    namespaces: Labels,
    now: float,
    *,
    excess: Refusal | None = None,
) -> TenantStatus | None:
    """The status to write, or None when the one that stands says the same. What it says of promotion stays.

    `excess`: why the tenant asks for more than is left for its namespace.
    """
    meta, spec = pool
    namespace = tenant.meta.namespace
    if tenant.spec is None:
        return _compose(tenant, Refusal(Reason.INVALID, tenant.invalid), (0, 0), now)
    if not is_admitted(tenant, meta, spec, namespaces):
        return _compose(tenant, refuse_namespace(meta, namespace), (0, 0), now)
    if excess is not None:
        return _compose(tenant, excess, (0, 0), now)
    found, missing = resolve(tenant.spec, namespace, index, namespaces)
    keys = count_keys(tenant.spec, now)
    refusal = None
    if not keys:
        refusal = Refusal(Reason.NO_VALID_KEY, "no API key that has not expired. `lorafleet key create` adds one")
    elif missing:
        refusal = Refusal(
            Reason.ADAPTER_NOT_FOUND,
            f"pool {meta.name} has no adapter for {_enumerate(missing)}, or it is not shared with {namespace}. "
            "Create or share it, or correct spec.adapters.names",
        )
    return _compose(tenant, refusal, (len(found), keys), now)


def judge_orphan_tenant(tenant: Tenant, now: float) -> TenantStatus | None:
    """The verdict on a tenant whose pool does not exist, or None when it stands already."""
    return _compose(tenant, refuse_missing_pool(tenant.pool), (0, 0), now)


def _compose(tenant: Tenant, refusal: Refusal | None, counts: tuple[int, int], now: float) -> TenantStatus | None:
    """A status with (adapters, keys) counted; None when the one that stands says the same."""
    admitted = refusal is None or refusal.reason in (Reason.NO_VALID_KEY, Reason.ADAPTER_NOT_FOUND)
    why = refusal or Refusal(Reason.READY, "")
    drafts = [
        Draft(T.READY, refusal is None, why.reason, why.message),
        Draft(T.ACCEPTED, True, Reason.ACCEPTED) if admitted else Draft(T.ACCEPTED, False, why.reason, why.message),
        Draft(T.RECONCILING, False, Reason.RECONCILED),
        Draft(T.STALLED, refusal is not None, why.reason if refusal else Reason.RECONCILED, why.message),
    ]
    old = tenant.status
    new = TenantStatus(
        observed_generation=tenant.meta.generation,
        conditions=settle(drafts, old.conditions, tenant.meta.generation, now),
        adapters=counts[0],
        keys=counts[1],
        isolation=old.isolation,
        promotion=old.promotion,
    )
    return new if new != old else None


def resolve(spec: TenantSpec, namespace: str, index: AdapterIndex, namespaces: Labels) -> tuple[set[str], list[str]]:
    """The uids of the adapters that a tenant may call, and the names that lead nowhere."""
    own = index.by_namespace.get(namespace, ())
    selector = spec.adapters.selector
    found = {each.meta.uid for each in own if selector is not None and matches(selector, each.meta.labels)}
    missing = []
    for name in spec.adapters.names:
        home, _, bare = name.rpartition("/")
        adapter = index.by_name.get((home or namespace, bare))
        if adapter is None or not _may_name(adapter, namespace, namespaces):
            missing.append(name)
        else:
            found.add(adapter.meta.uid)
    return found, missing


def count_keys(spec: TenantSpec, now: float) -> int:
    """Keys that have not expired."""
    return sum(expiry is None or expiry > now for expiry in _expiries(spec))


def next_expiry(tenants: Sequence[Tenant], now: float) -> float | None:
    """The next epoch second at which a key expires."""
    moments = [each for tenant in tenants if tenant.spec for each in _expiries(tenant.spec) if each and each > now]
    return min(moments, default=None)


def _expiries(spec: TenantSpec) -> list[float | None]:
    return [_expiry(key.expires_at) if key.expires_at else None for key in spec.api_keys]


def _expiry(text: str) -> float:
    try:
        return parse_timestamp(text)
    except ValueError:
        return 0.0  # a time that nobody can read does not keep a key alive


def _may_name(adapter: Adapter, namespace: str, namespaces: Labels) -> bool:
    if adapter.meta.namespace == namespace:
        return True
    shared = adapter.spec.shared_with if adapter.spec else None
    return shared is not None and matches(shared.namespace_selector, namespaces.get(namespace, {}))


def _enumerate(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
