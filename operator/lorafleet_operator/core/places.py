"""What placement takes and gives: replicas, versions, a policy, and choices with their reasons. Pure data.

Used by placement.py and its parts, residency.py and the verdicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lorafleet_contracts.admin import Tier
from lorafleet_operator.core.capability import ASSUMED

STAYS = "Stays"
LEAST_LOADED = "LeastLoaded"
SPREAD = "Spread"
REDUNDANCY = "Redundancy"
HOT = "Hot"
BALANCE = "Balance"


@dataclass(frozen=True, slots=True)
class Bin:
    """One usable replica: `budget` bytes for adapters on its GPU, of which nobody has `free` now; `host` in its cache.

    `others` are bytes on its GPU that no item stands for. `domain` is what it fails together with (default: nothing
    else). A `leaving` one takes nothing, and what it has goes elsewhere, if there is any other.
    """

    name: str
    budget: int
    others: int = 0
    free: int = 0
    host: int = 0
    domain: str = ""
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """One version that should be on `count` replicas at least. `age` orders fairly (older first).

    `holders` have it or are getting it, `reasons` says why each was chosen, `asked` on which tier each should have it;
    `avoid` failed to take it a moment ago or gives no answers; `near` is the replica that has its files on disk.
    `load` is its requests a second, `away` are those that tenants' own replicas answer as long as they live; `had` says
    on how many replicas it was to be before; a `fixed` one stays as it is.
    """

    key: str
    age: str
    bytes: int
    count: int
    holders: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)
    near: str = ""
    asked: Mapping[str, Tier] = field(default_factory=dict)
    load: float = 0.0
    away: float = 0.0
    pinned: bool = False
    priority: int = 0
    had: int = 0
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """`redundancy`: how many replicas may be lost without a pinned or hot version being lost on the way. `moves`: how
    many versions may be brought to replicas now although they serve as they are. `capacity`: requests a second that one
    replica can do, by which it is judged what is much."""

    redundancy: int = 1
    moves: int = 0
    capacity: float = ASSUMED.effective_requests_per_s


@dataclass(frozen=True, slots=True)
class Choice:
    """One replica for an item, why, and on which tier. A `pinned` one never makes way on the GPU."""

    replica: str
    reason: str
    tier: Tier = Tier.GPU
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an item goes. `most_free`: bytes that the roomiest replica could give when none can take it."""

    choices: tuple[Choice, ...]
    most_free: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where all items go, by key, and how many of these places are moves of this plan."""

    placed: Mapping[str, Placed]
    moves: int
