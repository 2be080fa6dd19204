"""What a plan may ask for: a closed set of values that shell/execute.py carries out. Holds no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from lorafleet_contracts.admin import SourceSpec
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolStatus
from lorafleet_contracts.resources.tenant import TenantStatus
from lorafleet_operator.core.places import Choice
from lorafleet_operator.core.snapshot import InspectionKey, VersionOn

Kind = Literal["LoraPool", "LoraAdapter", "Tenant"]


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply one object of our own; `fingerprint` identifies its content."""

    key: str
    fingerprint: str
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fetch:
    """What an engine is told of a source; the credentials are added from the Secret (namespace, name), if any."""

    source: SourceSpec
    secret: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Inspect:
    """Have one replica fetch and verify an adapter's files. `digest` is the one they must have, if any."""

    key: InspectionKey
    replica: str
    fetch: Fetch
    digest: str | None


@dataclass(frozen=True, slots=True)
class Load:
    """Have one version on one replica, as `choice` says: on which tier, whether pinned, and why there."""

    target: VersionOn
    fetch: Fetch
    namespace: str
    name: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Unload:
    """Drain and free one version on one replica."""

    target: VersionOn


@dataclass(frozen=True, slots=True)
class Delete:
    """End one object of our own, `key` being "Kind/name", provided that the pool of uid `owner` owns it."""

    key: str
    namespace: str
    owner: str


Action: TypeAlias = Apply | Delete | Inspect | Load | Unload


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """The new status of one of the users' objects (that very one: by uid)."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    status: LoraPoolStatus | LoraAdapterStatus | TenantStatus


@dataclass(frozen=True, slots=True)
class Warn:
    """Put an event beside one of the users' objects; `name` makes it one event however often it is asked for."""

    name: str
    about: StatusWrite
    generation: int
    reason: str
    message: str
    type: Literal["Warning", "Normal"] = "Warning"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and in how many seconds to look again even if nothing happens (None: no need).

    `statuses` are sorted by urgency; they are what should be written and is not yet, or the most urgent part of it.
    `surplus` are the versions that nobody needs any more, `leaving` the replicas that are to go; `tells_popularity`
    says that one of the statuses is written for that alone. `needs` are the replicas that the load of each set asks for
    now, `moves` counts loads of versions that serve elsewhere already.
    """

    actions: tuple[Action, ...] = ()
    statuses: tuple[StatusWrite, ...] = ()
    warnings: tuple[Warn, ...] = ()
    surplus: tuple[VersionOn, ...] = ()
    moves: int = 0
    leaving: frozenset[str] = frozenset()
    tells_popularity: bool = False
    needs: Mapping[str, int] = field(default_factory=dict)
    again_in: float | None = None
