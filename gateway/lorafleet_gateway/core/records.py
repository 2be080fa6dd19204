"""What the gateway knows of Kubernetes objects: compact frozen records. Made by shell/watches.py, read by core."""

from dataclasses import dataclass

from lorafleet_contracts.names import BASE_MODEL, SHARED_SET, version_key
from lorafleet_contracts.resources.pool import AllowedNamespaces
from lorafleet_contracts.resources.schema import LabelSelector
from lorafleet_contracts.resources.tenancy import Tenancy
from lorafleet_contracts.tenancy import TenantClaim
from lorafleet_gateway.core.limits import Limits

ObjectKey = tuple[str, str]
"""(namespace, name)"""


@dataclass(frozen=True, slots=True)
class Pool:
    """A LoraPool. `created` is seconds since the epoch, `window` the most tokens of a request and its answer."""

    key: ObjectKey
    uid: str
    created: int
    base: str
    aliases: frozenset[str]
    allowed: AllowedNamespaces
    window: int
    tenancy: Tenancy


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoraAdapter. `digest` is the version that tenants get, None while none serves or while it is suspended, in the
    set of replicas `set`."""

    key: ObjectKey
    uid: str
    created: int
    pool: ObjectKey
    model: str
    digest: str | None
    labels: tuple[tuple[str, str], ...]
    shared_with: LabelSelector | None
    set: str = SHARED_SET

    @property
    def version(self) -> str | None:
        """`{uid}@{digest}` of the version that tenants get."""
        return None if self.digest is None else version_key(self.uid, self.digest)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One API key of a tenant: hex SHA-256, and its end in seconds since the epoch (None: never)."""

    sha256: str
    expires: float | None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A Tenant. `names` are as written in the spec: bare ones, and `namespace/name` ones for shared adapters. `own` is
    the tenant's own set of replicas while there is one, and requests are to go there first while `cut_over`; those of
    an `isolated` tenant go there or nowhere. `claim` is what it asks of the pool."""

    key: ObjectKey
    pool: ObjectKey
    selector: LabelSelector | None
    names: frozenset[str]
    base: bool
    keys: tuple[tuple[str, StoredKey], ...]
    own: str | None = None
    cut_over: bool = False
    isolated: bool = False
    limits: Limits | None = None
    claim: TenantClaim | None = None
    weight: int = 1

    @property
    def set(self) -> str | None:
        """Where requests go first, if that is a set of the tenant's own."""
        return self.own if self.cut_over else None


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine replica by its two ports, `host:port` each. With `tls` it speaks nothing else, in its pool's name."""

    serving: str
    state: str
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Slice:
    """One EndpointSlice of a set of engine replicas, without the terminating ones.

    `ready` replicas may get requests; the `waiting` ones are only looked at, so that they are known once they are.
    """

    pool: ObjectKey
    set: str
    ready: tuple[Replica, ...]
    waiting: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """What a name means for one tenant: a version of an adapter, or the base. `version` None: nothing serves yet.
    `sets` are where to ask for it, in this order; none where the tenant's own set is not there yet."""

    name: str
    version: str | None
    created: int
    owner: str
    parent: str | None
    sets: tuple[str, ...] = (SHARED_SET,)

    @property
    def is_base(self) -> bool:
        """Whether this is the base model itself."""
        return self.version == BASE_MODEL
