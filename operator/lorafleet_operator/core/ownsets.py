"""From tenants, their load and what engines tell to the sets that tenants have of their own. Called by fleet.py;
promotion.py and dedication.py decide.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lorafleet_contracts.admin import ParityState, VersionPhase
from lorafleet_contracts.durations import parse_seconds
from lorafleet_contracts.names import MERGED_PREFIX, private_set, split_version_key, version_key
from lorafleet_contracts.probe import PARITY_FAILED
from lorafleet_contracts.resources.pool import LoraPoolSpec, SetKind
from lorafleet_contracts.resources.tenant import PromotionStatus
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.capability import Capacity
from lorafleet_operator.core.classes import limit_of, work_of
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.dedication import Budget, Promoted, decide_promotions, next_moment, routed_set, set_of
from lorafleet_operator.core.promotion import Own, Rules, TenantCase
from lorafleet_operator.core.sets import EngineSet, Merge
from lorafleet_operator.core.snapshot import PoolSnapshot, Replica, Tenant
from lorafleet_operator.core.tenants import (
    AdapterIndex,
    index_adapters,
    is_admitted,
    refuse_excessive_tenants,
    resolve,
)

NOTICED = 0.5
"""Of the load that promotes: below it a tenant that never had a set is not looked at."""
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class OwnSets:
    """The verdicts by tenant's uid, the sets that they have, which adapters (uids) belong on each private one, and the
    next epoch second of note."""

    verdicts: Mapping[str, Promoted] = field(default_factory=dict)
    sets: tuple[EngineSet, ...] = ()
    private: Mapping[str, frozenset[str]] = field(default_factory=dict)
    due: float | None = None


@dataclass(frozen=True, slots=True)
class _Ground:
    snapshot: PoolSnapshot
    spec: LoraPoolSpec
    cases: Mapping[str, Case]
    index: AdapterIndex
    capacity: Capacity
    excess: Mapping[str, Refusal]


def rules_of(spec: LoraPoolSpec) -> Rules:
    """A pool's thresholds."""
    wanted = spec.promotion
    return Rules(
        wanted.enabled,
        wanted.promote_at_percent / 100,
        parse_seconds(wanted.promote_after),
        wanted.demote_at_percent / 100,
        parse_seconds(wanted.demote_after),
    )


def held_replicas(snapshot: PoolSnapshot) -> int:
    """Replicas that tenants' own sets hold now."""
    standing = (set_of(each.status.promotion) for each in snapshot.tenants if not each.meta.deleting)
    sizes = {name: snapshot.workloads.get(name) for name in standing if name is not None}
    return sum(max(workload.replicas, 1) if workload else 1 for workload in sizes.values())


def answered_apart(snapshot: PoolSnapshot) -> list[str]:
    """Tenants ("namespace/name") whose requests are answered by replicas of their own now."""
    serving = {each.set for each in snapshot.replicas if each.usable}
    return [
        f"{each.meta.namespace}/{each.meta.name}"
        for each in snapshot.tenants
        if routed_set(each.status.promotion) in serving
    ]


def decide_own_sets(
    snapshot: PoolSnapshot,
    spec: LoraPoolSpec,
    seen: tuple[Sequence[Case], float],
    capacity: Capacity,
    others: tuple[int, Callable[[float], int]],
) -> OwnSets:
    """Move every tenant on. `seen`: the cases, and the epoch second now; `others`: the replicas of all other sets, and
    how many of them so much less load frees."""
    cases, now = seen
    rules = rules_of(spec)
    noticed = [
        each for each in snapshot.tenants if not each.meta.deleting and _is_noticed(each, rules, snapshot, capacity)
    ]
    if not noticed:
        return OwnSets()
    index = index_adapters([each.adapter for each in cases])
    excess = refuse_excessive_tenants(snapshot, spec)
    ground = _Ground(snapshot, spec, {each.adapter.meta.uid: each for each in cases}, index, capacity, excess)
    spare = limit_of(spec) - others[0] - held_replicas(snapshot)
    budget = Budget(spec.promotion.max_dedicated, spare, others[1])
    decided = decide_promotions([_case(each, ground) for each in noticed], rules, budget, now)
    sets = [_engine_set(each, ground) for each in sorted(decided, key=lambda each: each.case.key) if each.replicas]
    private = {
        each.status.set: frozenset(each.case.serving)
        for each in decided
        if each.status is not None and each.status.set is not None and each.status.version is None
    }
    verdicts = {each.case.uid: each for each in decided}
    return OwnSets(verdicts, tuple(sets), private, next_moment(decided, rules, now))


def _is_noticed(tenant: Tenant, rules: Rules, snapshot: PoolSnapshot, capacity: Capacity) -> bool:
    if tenant.status.promotion is not None or (tenant.spec is not None and tenant.spec.isolation == "Dedicated"):
        return True
    return rules.enabled and _load(tenant, snapshot, capacity)[0] >= NOTICED * rules.promote_at


def _load(tenant: Tenant, snapshot: PoolSnapshot, capacity: Capacity) -> tuple[float, dict[str, float]]:
    """A tenant's load in replicas of the plain base, and by adapter's uid."""
    rates = snapshot.load.tenants.get(f"{tenant.meta.namespace}/{tenant.meta.name}", {})
    by_uid = {uid: work_of(each, capacity.requests_per_s, capacity.tokens_per_s) for uid, each in rates.items()}
    return sum(by_uid.values()), by_uid


def _case(tenant: Tenant, ground: _Ground) -> TenantCase:
    snapshot, meta = ground.snapshot, tenant.meta
    load, by_uid = _load(tenant, snapshot, ground.capacity)
    top = max(by_uid, key=lambda uid: (by_uid[uid], uid), default="")
    admitted = (
        tenant.spec is not None
        and is_admitted(tenant, snapshot.pool.meta, ground.spec, snapshot.namespaces)
        and meta.uid not in ground.excess
    )
    serving: dict[str, tuple[str, str]] = {}
    own, status = private_set(meta.uid), tenant.status.promotion
    if tenant.spec is not None and admitted:
        found, _ = resolve(tenant.spec, meta.namespace, ground.index, snapshot.namespaces)
        serving = {uid: _serving(ground.cases[uid]) for uid in found}
    return TenantCase(
        key=f"{meta.namespace}/{meta.name}",
        uid=meta.uid,
        created=meta.created,
        isolated=tenant.spec is not None and tenant.spec.isolation == "Dedicated",
        load=load,
        status=status,
        own=_own(status, serving, snapshot),
        top=top,
        share=by_uid[top] / load if load else 0.0,
        serving=serving,
        admitted=admitted,
        at_home=any(_is_home(ground.cases[uid], own) for uid in serving),
    )


def _is_home(case: Case, own: str) -> bool:
    """Whether an adapter is answered by a private set that it is to leave."""
    return case.home == own != case.dedicated and case.serving is not None


def _serving(case: Case) -> tuple[str, str]:
    """The version that tenants get ("": none) and its source ("": not known for sure, or about to change)."""
    spec, digest = case.adapter.spec, case.serving
    if digest is None or spec is None:
        return "", ""
    # An engine that merges reads no Secret: an adapter behind credentials stays unmerged in its tenant's own set.
    settled = case.target == digest and spec.source.credentials_secret_ref is None
    return version_key(case.adapter.meta.uid, digest), spec.source.uri if settled else ""


def _own(status: PromotionStatus | None, serving: Mapping[str, tuple[str, str]], snapshot: PoolSnapshot) -> Own:
    name = set_of(status)
    if status is None or name is None:
        return Own()
    workload = snapshot.workloads.get(name)
    replicas = [each for each in snapshot.replicas if each.set == name and not each.deleting]
    wanted = {status.version} if status.version else {version for version, _ in serving.values() if version}
    parities = [parity for each in replicas if (parity := _parity(each, status.version)) is not None]
    troubles = [f"{each.name}: {each.message or each.waiting}" for each in replicas if not each.usable and each.waiting]
    warm = sum(each.usable and wanted <= _answers(each, status.version) for each in replicas)
    return Own(
        wanted=workload.replicas if workload else 0,
        heard=sum(each.state is not None for each in replicas),
        usable=sum(each.usable for each in replicas),
        warm=warm,
        busy=sum(each.state.in_flight + each.state.queue for each in replicas if each.state is not None),
        parity=max(parities, key=lambda each: each.merged / max(each.unmerged, 1e-12), default=None),
        trouble="; ".join(troubles[:_NAMES_SHOWN]),
        parity_failed=any(PARITY_FAILED in each for each in troubles),
    )


def _parity(replica: Replica, version: str | None) -> ParityState | None:
    merged = replica.state.merged if replica.state is not None else None
    if merged is None or version is None or version_key(merged.uid, merged.digest) != version:
        return None
    return merged.parity


def _answers(replica: Replica, version: str | None) -> set[str]:
    """The versions that a replica answers: the one in its weights, or those in its memory."""
    if version is not None:
        return {version} if _parity(replica, version) is not None else set()
    return (
        {each.key for each in replica.state.versions if each.phase == VersionPhase.RESIDENT} if replica.state else set()
    )


def _engine_set(promoted: Promoted, ground: _Ground) -> EngineSet:
    status = promoted.status
    assert status is not None  # a set is only there with a status that names it
    name = status.set or ""
    kind: SetKind = "Merged" if name.startswith(MERGED_PREFIX) else "Private"
    why = f"{status.stage} for tenant {promoted.case.key}: {status.message}"
    return EngineSet(name, kind, promoted.replicas, tenant=promoted.case.key, merged=_merge(status, ground), why=why)


def _merge(status: PromotionStatus, ground: _Ground) -> Merge | None:
    if status.version is None:
        return None
    uid, _ = split_version_key(status.version)
    case = ground.cases.get(uid)
    namespace, name = (case.adapter.meta.namespace, case.adapter.meta.name) if case else ("merged", uid)
    return Merge(status.source or "", status.version, namespace, name)
