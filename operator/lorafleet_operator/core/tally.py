"""The running sums of one placement: load, bytes and pins of every replica, and who is where. Kept by placement.py.

Loads are in even shares: 1.0 is what each replica would have if all had the same. So are fills (of bytes by budget).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from lorafleet_operator.core.places import HOT, REDUNDANCY, STAYS, Bin, Item, Policy

HOT_SHARE = 0.85
"""A version is hot that has this much of an even share of the load of all replicas..."""
HOT_WORK = 0.0125
"""...and so much of what one replica can do; it stays hot down to half of both."""
EARNED = frozenset({HOT, REDUNDANCY, STAYS})
"""Reasons of copies that a load was worth (a status does not show them all: of the others nothing is known)."""
COPY_SHARE = 1.0
"""A hot version has so many replicas that none gets more than this of an even share of its load..."""
COPY_WORK = 0.0625
"""...as long as each gets so much of what one replica can do."""
EVEN_WORK = 0.125
"""With less load in all than so much of what one replica can do, evening it out is worth nothing."""
PRIOR = 0.1
"""Share of all load that is assumed to be spread evenly over the versions, as the next minutes may differ."""
CROWDING = 0.5
"""What the square of the bytes that are needed beyond a budget (in budgets) counts beside that of a load."""
HALVINGS, UNEVEN = 16, 1000.0
"""Steps of the search for the use at which a version is on a GPU half of the time, and how wide it begins."""


@dataclass(slots=True, eq=False)
class Draft:
    """One item on its way to places. It must be on `must` replicas, should be on `wish`, and keeps `keep` at most.

    `share` is its load in even shares, of which `seen` was asked for and is not only assumed; `weight` says how hard it
    is to place, `need` the bytes of a GPU that it takes in the mean; `chosen` are the indices of its replicas and
    `reasons` why each; `safe` copies outlive the losses that the policy speaks of; `firm` ones come first on the GPU.
    """

    item: Item
    share: float
    seen: float
    weight: float
    must: int
    wish: int
    keep: int
    safe: int
    firm: bool
    need: float = 0.0
    chosen: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


class Tally:
    """All bins of one set and the drafts of all items.

    `needs` are the bytes that what was chosen takes in the mean, `others` are bytes of what else is there, `room` is
    what is left (below 0: not all of it can be on the GPU at once).
    """

    def __init__(self, bins: Sequence[Bin], items: Sequence[Item], policy: Policy) -> None:
        count = len(bins)
        self.bins = bins
        self.at = {each.name: index for index, each in enumerate(bins)}
        self.domains = [each.domain or each.name for each in bins]
        self.load = [0.0] * count
        self.others = [each.others for each in bins]
        self.needs = [0.0] * count
        self.room = [each.budget - each.others for each in bins]
        self.pins = [0] * count
        self.known = sum(each.load for each in items)
        self.pull = 1.0 if self.known >= EVEN_WORK * policy.capacity else 0.0
        prior = self.known * PRIOR / len(items) if self.known else 1.0
        even = ((self.known + prior * len(items)) / count if count else 0.0) or 1.0
        total = sum(each.bytes * max(each.count, 1) for each in items) + sum(self.others)
        budget = sum(each.budget for each in bins)
        fill = max(total, 1) / max(budget, 1)
        self.unit = [1.0 / (max(each.budget, 1) * fill) for each in bins]
        self.fill = [size * unit for size, unit in zip(self.others, self.unit, strict=True)]
        scale = count / total if total else 0.0
        self.drafts = [
            self._draft(each, policy, ((each.load + prior) / even, each.load / even), each.bytes * scale)
            for each in items
        ]
        least = _mostly_on(self.drafts, budget) if self.pull else 0.0
        for draft in self.drafts:
            draft.need = draft.item.bytes * (1.0 if draft.item.pinned else _presence(draft, least))

    def _draft(self, item: Item, policy: Policy, shares: tuple[float, float], size: float) -> Draft:
        bins, weight = len(self.bins), size + shares[0]
        if item.fixed:
            return Draft(item, *shares, weight, 0, 0, item.count, 0, item.pinned)
        safe = max(item.count, 1 + policy.redundancy)
        base = safe if item.pinned else item.count
        # Copies that it has because it was hot: not those that are there for a move's sake.
        extra = sum(reason in EARNED for reason in item.reasons.values()) if len(item.reasons) > base else 0
        now = min(len(item.holders), base + extra)
        load = item.load + item.away  # what is answered elsewhere comes back the moment that is lost
        if not self.known + item.away:  # nothing is known of any load: the copies that it was worth before stay
            must, keep = min(base, bins), min(max(base, min(now, item.had)), bins)
            return Draft(item, *shares, weight, must, must, keep, safe, item.pinned or item.priority > 0)
        portion, work = load * bins / (self.known + item.away), load / policy.capacity
        wish = max(base, _copies(work, portion, safe))
        keep = max(base, _copies(2 * work, 2 * portion, safe))
        # Copies that were there before and got lost come back at once; that is no move.
        must = max(base, min(item.had, keep))
        firm = item.pinned or item.priority > 0 or wish > base or (keep > base and max(now, item.had) > base)
        wish = max(wish, min(now, keep), must)
        keep = max(wish, min(now, keep))
        return Draft(item, *shares, weight, min(must, bins), min(wish, bins), min(keep, bins), min(safe, bins), firm)

    def add(self, draft: Draft, index: int, reason: str) -> None:
        """Choose a replica for a draft; its load is spread evenly over all of its own."""
        chosen = draft.chosen
        if chosen:
            part = draft.share / (len(chosen) * (len(chosen) + 1))
            for other in chosen:
                self.load[other] -= part
        chosen.append(index)
        draft.reasons.append(reason)
        self.load[index] += draft.share / len(chosen)
        size = draft.item.bytes
        self.needs[index] += draft.need
        self.room[index] -= size
        self.fill[index] += size * self.unit[index]
        if draft.item.pinned:
            self.pins[index] += size

    def leave(self, draft: Draft, index: int) -> None:
        """Count a copy that is there and not chosen (yet)."""
        self.others[index] += draft.item.bytes
        self.room[index] -= draft.item.bytes

    def stay(self, draft: Draft, index: int, reason: str) -> None:
        """Choose a copy that was counted as leaving."""
        self.others[index] -= draft.item.bytes
        self.room[index] += draft.item.bytes
        self.add(draft, index, reason)

    def move(self, draft: Draft, index: int, reason: str) -> None:
        """Take a draft that has one replica to another."""
        [source] = draft.chosen
        size = draft.item.bytes
        self.load[source] -= draft.share
        self.needs[source] -= draft.need
        self.others[source] += size
        self.fill[source] -= size * self.unit[source]
        if draft.item.pinned:
            self.pins[source] -= size
        draft.chosen, draft.reasons = [], []
        self.add(draft, index, reason)

    def costs(self, draft: Draft) -> list[float]:
        """How much worse one more copy would make the evenness of each replica's load and bytes."""
        load = draft.share / (len(draft.chosen) + 1)
        size = draft.item.bytes
        costs = [
            load * (2 * x + load) + size * unit * (2 * y + size * unit)
            for x, y, unit in zip(self.load, self.fill, self.unit, strict=True)
        ]
        near = self.at.get(draft.item.near)
        if near is not None:  # files that are there already are worth as much as being lighter by their size
            costs[near] -= 2 * (size * self.unit[near]) ** 2
        return costs

    def best(self, draft: Draft) -> int | None:
        """The best replica for one more copy; None where none can take it."""
        costs, item = self.costs(draft), draft.item
        if not draft.chosen and not item.avoid:
            index = costs.index(min(costs))
            if self.room[index] >= item.bytes or (
                max(self.room) < item.bytes and self.pins[index] + item.bytes <= self.bins[index].budget
            ):
                return index
        taken = {self.domains[index] for index in draft.chosen}
        found = min(
            (
                (
                    each.name in item.avoid,
                    self.domains[index] in taken,
                    self.room[index] < item.bytes,
                    costs[index],
                    index,
                )
                for index, each in enumerate(self.bins)
                if index not in draft.chosen and self.pins[index] + item.bytes <= each.budget
            ),
            default=None,
        )
        return found[-1] if found else None

    def best_of(self, draft: Draft, indices: Sequence[int]) -> int:
        """The best of replicas that have a copy already."""
        taken = {self.domains[index] for index in draft.chosen}
        costs = self.costs(draft)
        return min(
            indices, key=lambda index: (self.domains[index] in taken, self.burden(draft, index), costs[index], index)
        )

    def burden(self, draft: Draft, index: int) -> float:
        """What a copy adds to what moves are to lessen: squares of load and of the bytes beyond a budget, summed up.

        What nobody has asked for yet adds no load: else all of it would be moved to the least busy replica.
        """
        room, needs, share = max(self.bins[index].budget, 1), self.needs[index], draft.seen / (len(draft.chosen) or 1)
        full, more = max(needs / room - 1, 0.0), max((needs + draft.need) / room - 1, 0.0)
        return self.pull * share * (2 * self.load[index] + share) + CROWDING * (more * more - full * full)


def _mostly_on(drafts: Sequence[Draft], budget: int) -> float:
    """The use for each byte at which a version is on a GPU half of the time, so that all of them fill the GPUs; 0 where
    all fit at once."""
    if sum(draft.item.bytes for draft in drafts) <= budget:
        return 0.0
    uses = [_use(draft) for draft in drafts]
    low, high = min(uses) / UNEVEN, max(uses) * UNEVEN
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        taken = sum(
            draft.item.bytes * use * use / (use * use + middle * middle)
            for draft, use in zip(drafts, uses, strict=True)
        )
        low, high = (middle, high) if taken > budget else (low, middle)
    return high


def _presence(draft: Draft, least: float) -> float:
    """The part of the time that a version is on a GPU which the most used for each byte share."""
    use = _use(draft)
    return use * use / (use * use + least * least) if least else 1.0


def _use(draft: Draft) -> float:
    return draft.share / max(draft.item.bytes, 1)


def _copies(work: float, portion: float, safe: int) -> int:
    """How many copies a version of this load (in replicas, and in even shares) should have, 0: as few as others."""
    if work < HOT_WORK or portion < HOT_SHARE:
        return 0
    return max(safe, math.ceil(min(portion / COPY_SHARE, work / COPY_WORK)))
