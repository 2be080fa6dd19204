"""One adapter's case as far as it is known before placement. Called by the planning; composes admission and verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.names import SHARED_SET, private_set
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_contracts.resources.tenant import TenantSpec
from lorafleet_contracts.tenancy import AdapterClaim, refuse_adapters
from lorafleet_operator.core.actions import Fetch
from lorafleet_operator.core.admission import oldest_by_model, refuse_adapter, refuse_excess
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.manifests.quantities import parse_bytes
from lorafleet_operator.core.ranks import is_above
from lorafleet_operator.core.snapshot import Adapter, InspectionKey, Meta, PoolSnapshot, Tenant
from lorafleet_operator.core.sources import source_of
from lorafleet_operator.core.tenants import index_adapters, is_admitted, refuse_excessive_tenants, resolve
from lorafleet_operator.core.verification import Verification, verify

_UNKNOWN = frozenset({Reason.SOURCE_UNREACHABLE, Reason.SOURCE_DENIED, Reason.CREDENTIALS_UNUSABLE})


@dataclass(frozen=True, slots=True)
class Case:
    """An adapter, why the pool does not accept it (`denial`), and what is known of its files.

    `dedicated` is the private set that alone may answer it: nobody but isolated tenants may call it, or it is above
    all rank classes. Of one set of replicas it may concern only the version that is to serve (`coming`) or the one
    that does (`standing`), or be wanted on all of its replicas (`everywhere`). `pool` is what judged it.
    """

    adapter: Adapter
    denial: Refusal | None
    verification: Verification
    dedicated: str | None = None
    coming: bool = True
    standing: bool = True
    everywhere: bool = False
    pool: LoraPoolSpec | None = None

    @property
    def suspended(self) -> bool:
        """Whether its owner wants it unloaded."""
        return self.adapter.spec is not None and self.adapter.spec.suspend

    @property
    def declared(self) -> bool:
        """Whether the spec itself names the digest of its files."""
        return self.adapter.spec is not None and self.adapter.spec.source.digest is not None

    @property
    def refusal(self) -> Refusal | None:
        """Why it can't be served as the spec says, before any placement."""
        return self.denial or self.verification.refusal

    @property
    def revoked(self) -> bool:
        """Whether even the version that serves must go: what was allowed no longer is, the spec being the same.

        Files that cannot be fetched to be verified anew are not known to be bad.
        """
        refusal = self.refusal
        if refusal is None or refusal.reason in _UNKNOWN:
            return False
        same_spec = self.adapter.status.verified_generation == self.adapter.meta.generation
        return same_spec or refusal.reason in (Reason.NAMESPACE_NOT_ALLOWED, Reason.POOL_NOT_FOUND)

    @property
    def home(self) -> str:
        """The set of replicas where tenants get it now, by the last verdict."""
        return self.adapter.status.set or SHARED_SET

    @property
    def serving(self) -> str | None:
        """The digest that tenants get now, by the last verdict."""
        return self.adapter.status.digest if self.standing else None

    @property
    def target(self) -> str | None:
        """The digest that should serve, None while it is unknown or must not."""
        facts = self.verification.facts
        return None if facts is None or self.refusal or self.suspended or not self.coming else facts.digest

    @property
    def fetch(self) -> Fetch:
        """Where its files are, and what it takes to get them. Raises ValueError for one that no pool has accepted."""
        meta, spec = self.adapter.meta, self.adapter.spec
        if spec is None or self.pool is None:
            raise ValueError(f"adapter {meta.namespace}/{meta.name} has no source")
        ref = spec.source.credentials_secret_ref
        source = source_of(spec.source.uri, meta.namespace, self.pool)
        return Fetch(source, (meta.namespace, ref.name) if ref else None)

    @property
    def inspection(self) -> InspectionKey:
        """What an inspection of this generation is remembered by."""
        return InspectionKey(self.adapter.meta.uid, self.adapter.meta.generation)


def assess(snapshot: PoolSnapshot, spec: LoraPoolSpec) -> list[Case]:
    """Every adapter's case, in the order of the snapshot."""
    living = [each for each in snapshot.adapters if not each.meta.deleting]
    ground = _Ground(snapshot, spec, oldest_by_model(living), isolated_sets(snapshot, spec, living))
    return _hold_to_tenancy([_assess_one(each, ground) for each in living], snapshot.pool.meta, spec)


def _hold_to_tenancy(cases: list[Case], pool: Meta, spec: LoraPoolSpec) -> list[Case]:
    """Deny what is more than a namespace may ask for; pinned bytes count once the files are known."""
    asking = {
        (case.adapter.meta.namespace, case.adapter.meta.name): case
        for case in cases
        if case.denial is None and not case.suspended
    }
    most = spec.tenancy.max_pinned_bytes
    claims = [_claim(key, case) for key, case in asking.items()]
    refused = refuse_adapters(spec.tenancy, None if most is None else parse_bytes(most), claims)
    denials = {asking[key].adapter.meta.uid: refuse_excess(pool, why) for key, why in refused.items()}
    return [replace(each, denial=denials.get(each.adapter.meta.uid, each.denial)) for each in cases]


def _claim(key: tuple[str, str], case: Case) -> AdapterClaim:
    spec, facts = case.adapter.spec, case.verification.facts
    assert spec is not None  # those without are denied
    pinned = facts.bytes if facts is not None and spec.pinned else 0
    return AdapterClaim(key, case.adapter.meta.created, spec.priority, pinned, spec.min_replicas)


@dataclass(frozen=True, slots=True)
class Isolated:
    """By adapter's uid: the private set of the oldest isolated tenant that may call it. `alone`: nobody else may."""

    sets: Mapping[str, str] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()


def isolated_sets(snapshot: PoolSnapshot, spec: LoraPoolSpec, adapters: Sequence[Adapter]) -> Isolated:
    """Which adapters isolated tenants may call, and which of them nobody whose requests run on shared replicas."""
    excess = refuse_excessive_tenants(snapshot, spec)
    admitted = [
        (each, each.spec)
        for each in snapshot.tenants
        if each.spec is not None
        and not each.meta.deleting
        and each.meta.uid not in excess
        and is_admitted(each, snapshot.pool.meta, spec, snapshot.namespaces)
    ]
    isolated = [(each, wanted) for each, wanted in admitted if wanted.isolation == "Dedicated"]
    if not isolated:
        return Isolated()
    index = index_adapters(adapters)
    sets: dict[str, str] = {}
    for tenant, wanted in sorted(
        isolated, key=lambda each: (each[0].meta.created, each[0].meta.namespace, each[0].meta.name)
    ):
        for uid in resolve(wanted, tenant.meta.namespace, index, snapshot.namespaces)[0]:
            sets.setdefault(uid, private_set(tenant.meta.uid))
    theirs = index_adapters([each for each in adapters if each.meta.uid in sets])
    shared = {
        uid
        for tenant, wanted in admitted
        if _is_on_shared(tenant, wanted)
        for uid in resolve(wanted, tenant.meta.namespace, theirs, snapshot.namespaces)[0]
    }
    return Isolated(sets, frozenset(sets.keys() - shared))


def _is_on_shared(tenant: Tenant, spec: TenantSpec) -> bool:
    """Whether a tenant is to be answered by shared replicas: one that becomes isolated, until its own set is made."""
    stage = tenant.status.promotion.stage if tenant.status.promotion else "Shared"
    return spec.isolation == "Shared" or (tenant.status.isolation == "Shared" and stage in ("Shared", "Draining"))


@dataclass(frozen=True, slots=True)
class _Ground:
    """What every case of a plan is judged on."""

    snapshot: PoolSnapshot
    spec: LoraPoolSpec
    winners: Mapping[tuple[str, str], str]
    isolated: Isolated


def _assess_one(adapter: Adapter, ground: _Ground) -> Case:
    snapshot, spec = ground.snapshot, ground.spec
    denial = refuse_adapter(adapter, snapshot.pool.meta, spec, snapshot.namespaces, ground.winners)
    if denial:
        return Case(adapter, denial, Verification(), pool=spec)
    own, alone = ground.isolated.sets.get(adapter.meta.uid), adapter.meta.uid in ground.isolated.alone
    key = InspectionKey(adapter.meta.uid, adapter.meta.generation)
    verification = verify(adapter, spec, snapshot.memory.inspections.get(key), isolated=own is not None)
    facts = verification.facts
    above = facts is not None and is_above(facts.rank, spec.rank_classes.ceilings)
    return Case(adapter, None, verification, own if above or alone else None, pool=spec)
