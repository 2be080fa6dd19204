"""The three ways to place: ours, by the operator's own code; by rendezvous hashing; everything everywhere."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from e2e.placement.trace import Setting, Trace
from lorafleet_operator.core.placement import place
from lorafleet_operator.core.places import Bin, Choice, Item, Policy
from lorafleet_operator.core.popularity import FAST_SECONDS, SLOW_SECONDS, Pace
from lorafleet_operator.core.wishes import load_of

PLAN_SECONDS = 60.0
"""Between two plans, each with one move: the default of 60 moves an hour."""
REDUNDANCY = 1


class Arm(Protocol):
    """Where adapters are: `holders` by number."""

    holders: list[list[int]]

    def plan(self, asked: Counter[int], now: float) -> list[tuple[int, int]]:
        """Think again, `asked` being the requests since the last time; returns the (adapter, replica) that are left."""


@dataclass(slots=True)
class Fixed:
    """Never moves anything."""

    holders: list[list[int]]

    def plan(self, asked: Counter[int], now: float) -> list[tuple[int, int]]:
        """Nothing ever leaves."""
        return []


def hashed(trace: Trace, setting: Setting) -> Fixed:
    """Each adapter on the replica with the highest hash of both names (rendezvous hashing)."""

    def weight(adapter: int, replica: int) -> bytes:
        return hashlib.sha256(f"a{adapter}/r{replica}".encode()).digest()

    replicas = range(setting.replicas)
    return Fixed([[max(replicas, key=lambda each: weight(adapter, each))] for adapter in range(setting.adapters)])


def everywhere(trace: Trace, setting: Setting) -> Fixed:
    """All adapters on all replicas."""
    return Fixed([list(range(setting.replicas))] * setting.adapters)


@dataclass(slots=True)
class Ours:
    """The operator's placement, planned every minute from the requests that were counted."""

    items: list[Item]
    bins: list[Bin]
    policy: Policy = field(default_factory=lambda: Policy(REDUNDANCY, moves=1))
    holders: list[list[int]] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    _at: float = 0.0
    _paces: list[Pace] = field(default_factory=list)
    _choices: list[tuple[Choice, ...]] = field(default_factory=list)

    def plan(self, asked: Counter[int], now: float) -> list[tuple[int, int]]:
        """Fold the rates as the operator does, place, and carry out."""
        if now > self._at:
            fast, slow = (-math.expm1((self._at - now) / each) for each in (FAST_SECONDS, SLOW_SECONDS))
            rates = (asked[number] / (now - self._at) for number in range(len(self.items)))
            self._paces = [
                Pace(each.fast + fast * (rate - each.fast), each.slow + slow * (rate - each.slow))
                for each, rate in zip(self._paces or [Pace()] * len(self.items), rates, strict=True)
            ]
            total = Pace(math.fsum(each.fast for each in self._paces), math.fsum(each.slow for each in self._paces))
            self.items = [
                replace(item, load=load_of(pace, total, self.policy.capacity))
                for item, pace in zip(self.items, self._paces, strict=True)
            ]
        self._at = now
        placement = place(self.items, self.bins, self.policy if now else replace(self.policy, moves=0))
        self.moves += [now] * placement.moves
        before, index = self.holders, {each.name: number for number, each in enumerate(self.bins)}
        choices, known = (
            [placement.placed[each.key].choices for each in self.items],
            self._choices or [()] * len(self.items),
        )
        self.holders = [[index[choice.replica] for choice in each] for each in choices]
        self.items = [
            item
            if chosen == old
            else replace(
                item,
                holders=frozenset(choice.replica for choice in chosen),
                reasons={choice.replica: choice.reason for choice in chosen},
                asked={choice.replica: choice.tier for choice in chosen},
                had=len(chosen),
            )
            for item, chosen, old in zip(self.items, choices, known, strict=True)
        ]
        self._choices = choices
        return [
            (adapter, each) for adapter, old in enumerate(before) for each in old if each not in self.holders[adapter]
        ]


def ours(trace: Trace, setting: Setting) -> Ours:
    """Nothing is known of any load at first."""
    items = [Item(f"a{number:05d}", "", size, 1) for number, size in enumerate(trace.sizes)]
    bins = [Bin(f"r{number:03d}", trace.budget, host=sum(trace.sizes)) for number in range(setting.replicas)]
    arm = Ours(items, bins)
    arm.plan(Counter(), 0.0)
    return arm


ARMS: dict[str, Callable[[Trace, Setting], Arm]] = {"ours": ours, "hash": hashed, "all": everywhere}


def most_in_an_hour(moments: Sequence[float]) -> int:
    """The most moments in any hour."""
    most, first = 0, 0
    for last, moment in enumerate(moments):
        while moments[first] <= moment - 3600.0:
            first += 1
        most = max(most, last - first + 1)
    return most
