"""Which entries of a tier make way for a new one. Pure; used by host_cache.py and disk_cache.py.

An entry is worth its uses, each counting less the longer ago it was (half after HALF_LIFE_S), for each of its bytes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

HALF_LIFE_S = 600.0


@dataclass(frozen=True, slots=True)
class Usage:
    """How often an entry was used, as counted at its last use `at` (seconds of a clock)."""

    weight: float
    at: float

    def used(self, now: float) -> "Usage":
        """The same with one more use."""
        return Usage(self.weight_at(now) + 1, max(now, self.at))

    def weight_at(self, now: float) -> float:
        """Uses, each halved for every HALF_LIFE_S since it happened."""
        return self.weight * math.exp2(-max(now - self.at, 0) / HALF_LIFE_S)


@dataclass(frozen=True, slots=True)
class Held:
    """An entry that may go: pinned ones are not asked about."""

    name: str
    bytes: int
    usage: Usage


def choose_victims(entries: Iterable[Held], needed: int, now: float) -> list[str]:
    """The entries to drop so that at least `needed` bytes come free: those worth least, and none that need not go.

    All of them, when even that is not enough.
    """
    ranked = sorted(entries, key=lambda each: (each.usage.weight_at(now) / max(each.bytes, 1), each.name))
    chosen: list[Held] = []
    freed = 0
    for entry in ranked:
        if freed >= needed:
            break
        chosen.append(entry)
        freed += entry.bytes
    for entry in reversed(tuple(chosen)):
        if freed - entry.bytes >= needed:
            chosen.remove(entry)
            freed -= entry.bytes
    return [entry.name for entry in chosen]
