"""The keys of the engines' ports, and how they rotate. Called by the shell (credentials, rotation) and the commands.

What a rotation has come to is in the entries alone: who carries it on, after a stop or beside another, needs no more.
Never logs a key or token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.tokens import port_token, token_mark
from lorafleet_operator.core.snapshot import PoolTokens

NEXT, PREVIOUS = "-next", "-previous"

Mark = tuple[str, str]
"""A port, and what one of its tokens is called."""
Uses = Mapping[Mark, float]
"""When each accepted token was last used; the engine's clock."""


class Stage(StrEnum):
    """How far a rotation is: none goes on; new keys are there, in use by nobody; new ones are in use beside the old."""

    RESTING = "Resting"
    OFFERED = "Offered"
    REPLACED = "Replaced"


@dataclass(frozen=True, slots=True)
class PortKeys:
    """Random keys, one a port; while they rotate each has its successor or its predecessor beside it."""

    by_entry: Mapping[str, bytes] = field(repr=False)

    @property
    def stage(self) -> Stage:
        """How far a rotation is."""
        if self._has(NEXT):
            return Stage.OFFERED
        return Stage.REPLACED if self._has(PREVIOUS) else Stage.RESTING

    def tokens_for(self, pool_uid: str) -> PoolTokens:
        """What a pool's engines accept: the token of the current key, then those of its successor and predecessor."""
        return PoolTokens({port.value: self._accepted(pool_uid, port) for port in PortName})

    def marks(self, pool_uid: str, suffix: str) -> frozenset[Mark]:
        """What a pool's tokens of the successors or predecessors are called."""
        found = ((port, self.by_entry.get(port.value + suffix)) for port in PortName)
        return frozenset((port.value, token_mark(port_token(key, pool_uid, port))) for port, key in found if key)

    def offer(self, fresh: Mapping[PortName, bytes]) -> "PortKeys":
        """Step 1: new keys beside those in use."""
        return PortKeys({**self.by_entry, **{port.value + NEXT: key for port, key in fresh.items()}})

    def replace(self) -> "PortKeys":
        """Step 2: the new keys in use, the old ones still accepted."""
        new = {port.value: self.by_entry[port.value + NEXT] for port in PortName}
        return PortKeys(new | {port.value + PREVIOUS: self.by_entry[port.value] for port in PortName})

    def settle(self) -> "PortKeys":
        """Step 3: only the keys in use."""
        return PortKeys({port.value: self.by_entry[port.value] for port in PortName})

    def _accepted(self, pool_uid: str, port: PortName) -> tuple[str, ...]:
        found = (self.by_entry.get(port.value + suffix) for suffix in ("", NEXT, PREVIOUS))
        return tuple(port_token(key, pool_uid, port) for key in found if key)

    def _has(self, suffix: str) -> bool:
        return all(port.value + suffix in self.by_entry for port in PortName)


@dataclass(frozen=True, slots=True)
class Period:
    """Keys are rotated `every` so many seconds (None: only by command); `quiet`: how long no old token may be used."""

    every: float | None
    quiet: float

    def calls_for(self, stage: Stage, made: float, now: float) -> bool:
        """Whether something is to be done: keys made at `made` are old enough, or a rotation was begun."""
        return self.every is not None and (stage is not Stage.RESTING or now >= made + self.every)


ONLY_BY_COMMAND = Period(every=None, quiet=120.0)


@dataclass(frozen=True, slots=True)
class EngineUses:
    """What one ready engine says of its tokens; no `uses`: it does not say."""

    name: str
    pool_uid: str
    uses: Uses | None


@dataclass(frozen=True, slots=True)
class Watched:
    """Who has seen what of the old tokens: since when, each one's last use, and when that was seen to have moved.

    By the clock of who looks: engines' clocks are only compared with themselves.
    """

    since: float
    used: Mapping[tuple[str, Mark], float] = field(default_factory=dict)
    moved: Mapping[str, float] = field(default_factory=dict)


def watch(before: Watched | None, keys: PortKeys, engines: Iterable[EngineUses], now: float) -> Watched:
    """What is known after one more look at the engines."""
    known = before or Watched(now)
    used, moved = dict(known.used), dict(known.moved)
    for each in engines:
        for mark in keys.marks(each.pool_uid, PREVIOUS):
            found = (each.uses or {}).get(mark, 0.0)
            if used.setdefault((each.name, mark), found) != found:
                used[each.name, mark], moved[each.name] = found, now
    return Watched(known.since, used, moved)


def not_accepting(keys: PortKeys, engines: Iterable[EngineUses]) -> tuple[str, ...]:
    """Engines that do not accept the new tokens yet, or do not say."""
    return tuple(
        each.name for each in engines if each.uses is None or not keys.marks(each.pool_uid, NEXT) <= each.uses.keys()
    )


def still_used(watched: Watched, engines: Iterable[EngineUses], until: float) -> tuple[str, ...]:
    """Engines where an old token was used after `until` (or that were not watched before it), or that do not say."""
    return tuple(
        each.name for each in engines if each.uses is None or watched.moved.get(each.name, watched.since) > until
    )


def accepting(marks: frozenset[Mark], engines: Iterable[EngineUses]) -> tuple[str, ...]:
    """Engines that accept one of these tokens, or do not say."""
    return tuple(each.name for each in engines if each.uses is None or marks & each.uses.keys())
