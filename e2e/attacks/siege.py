"""What all attacks share: who attacks whom, from where, and what every attack must come to. Made by conftest.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from e2e.attacks.slow import SlowClients
from e2e.attacks.wire import Place
from e2e.fleet import Fleet
from e2e.probes import Spot
from e2e.quickstart import Keys
from e2e.traffic import Seen

MALLORY = "lorafleet-e2e-mallory"
"""A namespace that the quickstart's pool admits, its tenant and that one's adapter `pirate`."""
GREEDY = "lorafleet-e2e-greedy"
"""Another; what is in it wants more than the pool's `tenancy` leaves."""
STRANGER = "lorafleet-e2e-stranger"
"""A namespace that the pool does not admit, with an adapter for everybody and a tenant with a key."""
CANARY = "xylophone-canary-4711"
"""In prompts: no log may have it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One attack: what it was, what must come back, and what did."""

    attack: str
    wanted: str
    answer: str


@dataclass(frozen=True, slots=True)
class Siege:
    """The installation under attack. Keys are never printed; `used` has every key and token that was sent or stored."""

    fleet: Fleet
    gateway: Place
    victims: Keys = field(repr=False)
    mallory: str = field(repr=False)
    expired: str = field(repr=False)
    greedy: Mapping[str, str] = field(repr=False)
    stranger: str = field(repr=False)
    pods: list[Spot]
    slow: SlowClients
    neighbour: Seen
    began: str
    used: set[str] = field(repr=False)
