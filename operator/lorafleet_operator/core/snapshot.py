"""All that a plan may know, frozen at one moment. Built by shell/observe.py, the planner and tests; decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lorafleet_contracts.admin import AdapterReport, EngineState, Problem, VersionPhase
from lorafleet_contracts.names import SHARED_SET, version_key
from lorafleet_contracts.resources.adapter import LoraAdapterSpec, LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolSpec, LoraPoolStatus
from lorafleet_contracts.resources.tenant import TenantSpec, TenantStatus
from lorafleet_operator.core.capability import Capacity
from lorafleet_operator.core.popularity import Track
from lorafleet_operator.core.sizing import Needs

HOLDING = frozenset({VersionPhase.FETCHING, VersionPhase.LOADING, VersionPhase.RESIDENT})


@dataclass(frozen=True, slots=True)
class Meta:
    """Identity of an API object. `created` is the server's RFC 3339 timestamp (sorts as text)."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    labels: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """A LoraPool. `spec` is None when it can't be read; `invalid` then says why."""

    meta: Meta
    spec: LoraPoolSpec | None
    status: LoraPoolStatus
    invalid: str = ""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoraAdapter. `pool` is the (namespace, name) it points to; `spec` is None when it can't be read."""

    meta: Meta
    pool: tuple[str, str]
    spec: LoraAdapterSpec | None
    status: LoraAdapterStatus
    invalid: str = ""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A Tenant. `pool` is the (namespace, name) it points to; `spec` is None when it can't be read."""

    meta: Meta
    pool: tuple[str, str]
    spec: TenantSpec | None
    status: TenantStatus
    invalid: str = ""


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine pod and the last state its engine told (None: never reached).

    `ready` is the pod's Ready condition, `current` whether it runs the newest template; `waiting` and `message` are
    the container's (or scheduler's) reason and words for not running. `set` is the set of replicas that it belongs to;
    `zone` and `cordoned` are its node's ("" and None where nodes can't be read).
    """

    name: str
    ready: bool
    deleting: bool
    current: bool
    state: EngineState | None
    waiting: str = ""
    message: str = ""
    set: str = SHARED_SET
    node: str = ""
    zone: str = ""
    cordoned: bool | None = False

    @property
    def usable(self) -> bool:
        """Whether it serves and may be given work."""
        state = self.state
        return (
            self.ready
            and not self.deleting
            and state is not None
            and state.ready
            and not state.draining
            and state.memory is not None
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call of the admin port as the pool's task remembers it: still `pending`, or ended at `at` (epoch seconds).

    `failures` counts failed calls in a row; `problem` is the last failure, `report` an inspection's findings, `reason`
    why a load went to this replica, `replica` the one that an inspection went to, `trust` the mark of the signers that
    it asked for.
    """

    pending: bool
    at: float
    failures: int = 0
    problem: Problem | None = None
    report: AdapterReport | None = None
    reason: str = ""
    replica: str = ""
    trust: str = ""


@dataclass(frozen=True, slots=True, order=True)
class InspectionKey:
    """One generation of one adapter."""

    uid: str
    generation: int


@dataclass(frozen=True, slots=True, order=True)
class VersionOn:
    """One version on one life of one replica."""

    replica: str
    boot_id: str
    uid: str
    digest: str

    @property
    def version(self) -> str:
        """`{uid}@{digest}`."""
        return version_key(self.uid, self.digest)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the pool's task remembers of its own calls and plans: a cache, never authority.

    `silent` says when a replica last left a call of its admin port without an answer (it has answered none since);
    `surplus` since when plans have found a version to be of no use any more; `popularity_told` when a status was last
    written for nothing but popularity; `moved_at` when a version was last moved, or memory began; `leaving` since when
    plans want a replica to go. All in epoch seconds.
    """

    inspections: Mapping[InspectionKey, Attempt] = field(default_factory=lambda: MappingProxyType({}))
    loads: Mapping[VersionOn, Attempt] = field(default_factory=lambda: MappingProxyType({}))
    unloads: Mapping[VersionOn, Attempt] = field(default_factory=lambda: MappingProxyType({}))
    silent: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    surplus: Mapping[VersionOn, float] = field(default_factory=lambda: MappingProxyType({}))
    popularity_told: float = 0.0
    moved_at: float = 0.0
    leaving: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Workload:
    """A set's StatefulSet as it is: `settled` when its controller has rolled the newest template out.

    `observed`: the controller has seen the newest spec, so that it is known which replicas are current. `rolled_out`:
    it makes all replicas with the newest template. Those of a number below `partition` keep an old one.
    """

    replicas: int
    settled: bool
    observed: bool = True
    rolled_out: bool = True
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Who may reach engines: our own pods (of this release, in this namespace) and all pods of `monitoring`."""

    namespace: str
    instance: str
    monitoring: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """The operator's settings for engine pods. Without `neighbours` no NetworkPolicy is made."""

    image: str
    pull_policy: str = "IfNotPresent"
    neighbours: Neighbours | None = None


@dataclass(frozen=True, slots=True)
class PoolTokens:
    """Accepted bearer tokens by port name, current first. Never printed."""

    by_port: Mapping[str, tuple[str, ...]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key in PEM; `fingerprint` is the certificate's SHA-256."""

    fingerprint: str
    chain: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PoolTls:
    """What a pool's engines speak TLS with (None: there is nothing to give at this moment, and they keep what they
    have), and the roots in PEM that whoever connects to them trusts."""

    certificate: Certificate | None = None
    roots: str = ""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One pool and everything that its task decides about. `workloads` are its StatefulSets by the set's name.

    `namespaces` maps names to labels; `applied` maps "Kind/name" to the fingerprint of what the API server is known
    to hold (absent: unknown or changed by others) or, with a word in `refusals`, does not want. `cluster_wide` is False
    when the operator sees some namespaces only. `load` is what is asked of its engines, `capacity` what
    one of them is known to do (None: only what the status says), and `needs` are those of its sets of late.
    """

    pool: Pool
    adapters: tuple[Adapter, ...]
    tenants: tuple[Tenant, ...]
    replicas: tuple[Replica, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    defaults: EngineDefaults
    tokens: PoolTokens
    tls: PoolTls = PoolTls()
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    applied: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    memory: Memory = Memory()
    cluster_wide: bool = True
    load: Track = field(default_factory=Track)
    capacity: Capacity | None = None
    needs: Mapping[str, Needs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrphanSnapshot:
    """Adapters and tenants whose pool does not exist."""

    adapters: tuple[Adapter, ...]
    tenants: tuple[Tenant, ...]
