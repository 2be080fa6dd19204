"""The first placement policy: least loaded by bytes among usable replicas; what is placed stays. Pure arithmetic.

Called by the planning with what must be somewhere; returns where, with the reason of each choice. Law: a replica never
gets more than its adapter budget less all that it already holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STAYS = "Stays"
LEAST_LOADED = "LeastLoaded"
SPREAD = "Spread"


@dataclass(frozen=True, slots=True)
class Bin:
    """One usable replica: `budget` bytes for adapters, `used` by every version on it, wanted or not."""

    name: str
    budget: int
    used: int


@dataclass(frozen=True, slots=True)
class Item:
    """One version that should be on `count` replicas. `age` orders fairly (older first).

    `holders` have it or are getting it, `reasons` says why each was chosen; `avoid` failed to take it a moment ago or
    gives no answers; `near` is the replica that has its files on disk, if any.
    """

    key: str
    age: str
    bytes: int
    count: int
    holders: frozenset[str]
    avoid: frozenset[str]
    reasons: Mapping[str, str]
    near: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One replica for an item, and why."""

    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an item goes. `most_free`: bytes free on the emptiest replica when no room was found for all of it."""

    choices: tuple[Choice, ...]
    most_free: int | None = None


def place(items: Iterable[Item], bins: Iterable[Bin]) -> dict[str, Placed]:
    """Choose replicas for every item: holders first, then the one with the files, then those with the fewest bytes."""
    budgets = {each.name: each.budget for each in bins}
    used = {each.name: each.used for each in bins}
    placed: dict[str, Placed] = {}
    for item in sorted(items, key=lambda each: (each.age, each.key)):
        placed[item.key] = _place_one(item, budgets, used)
    return placed


def _place_one(item: Item, budgets: Mapping[str, int], used: dict[str, int]) -> Placed:
    # A surplus holder is given up where the load is highest.
    staying = sorted(item.holders & budgets.keys(), key=lambda name: (used[name], name))[: item.count]
    choices = [Choice(name, item.reasons[name]) for name in staying]
    if len(choices) >= item.count:
        return Placed(tuple(choices))
    # Files that are there already are worth as much as being lighter by their size.
    candidates = sorted(
        budgets.keys() - item.holders,
        key=lambda name: (name in item.avoid, used[name] - (item.bytes if name == item.near else 0), name),
    )
    for name in candidates:
        if len(choices) >= item.count:
            break
        if used[name] + item.bytes <= budgets[name]:
            choices.append(Choice(name, SPREAD if choices else LEAST_LOADED))
            used[name] += item.bytes
    if len(choices) >= item.count or not candidates:
        return Placed(tuple(choices))
    return Placed(tuple(choices), max(budgets[name] - used[name] for name in candidates))
