"""Which of the versions on a replica should be on its GPU, and which wait for a request on a slower tier.

Called by placement.py when the replicas are chosen. The engine raises a version by its first request and lets the least
useful of those make way that need not be on the GPU, so those share the room that is left here.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum

from lorafleet_contracts.admin import Tier
from lorafleet_operator.core.tally import Draft, Tally

FIRM_SHARE = 0.75
"""How much of a budget versions may be sure of, while others must share what is left."""
STICKS = 1.5
"""A version that has a tier counts as so much more used than others when its place there is asked for."""


class Seat(Enum):
    """A tier, and whether the place there is pinned."""

    PINNED = "pinned"
    GPU = "gpu"
    HOST = "host"
    DISK = "disk"

    @property
    def tier(self) -> Tier:
        """The tier alone."""
        return _TIERS[self]


_TIERS = {Seat.PINNED: Tier.GPU, Seat.GPU: Tier.GPU, Seat.HOST: Tier.HOST, Seat.DISK: Tier.DISK}


def seat_all(tally: Tally) -> Mapping[tuple[str, int], Seat]:
    """The seat of every (version, replica) that is not simply on the GPU."""
    seats: dict[tuple[str, int], Seat] = {}
    crowded = {index for index in range(len(tally.bins)) if tally.room[index] < 0}
    aboard: dict[int, list[Draft]] = defaultdict(list)
    for draft in tally.drafts:
        for index in draft.chosen:
            if draft.item.pinned or index in crowded:
                aboard[index].append(draft)
    for index, drafts in aboard.items():
        if index in crowded:
            for draft, seat in _seat(drafts, index, tally):
                seats[draft.item.key, index] = seat
        else:
            for draft in drafts:
                seats[draft.item.key, index] = Seat.PINNED
    return seats


def _seat(drafts: Sequence[Draft], index: int, tally: Tally) -> list[tuple[Draft, Seat]]:
    """Seats on a replica where not everything fits."""
    name, budget = tally.bins[index].name, tally.bins[index].budget
    worth = {id(draft): _worth(draft, name) for draft in drafts}
    # A pin makes way for nobody: not for another one either, that comes because its own replica is lost.
    sits = {id(draft): draft.item.pinned and draft.item.asked.get(name) is Tier.GPU for draft in drafts}
    ranked = sorted(
        drafts, key=lambda each: (not each.item.pinned, not sits[id(each)], -each.item.priority, -worth[id(each)])
    )
    if sum(each.item.bytes for each in drafts) <= budget:
        return _seat_beside_leavers(ranked, index, tally)
    largest = max((each.item.bytes for each in drafts if not each.item.pinned), default=0)
    firm, hosted, free, seated = 0, 0, tally.bins[index].free, []
    for draft in ranked:
        size, pinned = draft.item.bytes, draft.item.pinned
        limit = budget - largest if pinned else min(FIRM_SHARE * budget, budget - largest)
        if draft.firm and firm + size <= limit:
            firm += size
            free -= 0 if name in draft.item.asked else size
            seated.append((draft, Seat.PINNED if pinned else Seat.GPU))
            continue
        largest = max(largest, size)
        if name not in draft.item.asked and size <= free:
            # It comes to an empty place on the GPU first, and only then shares it with the others.
            free -= size
            seated.append((draft, Seat.GPU))
            continue
        hosted += size
        seated.append((draft, Seat.HOST if hosted <= tally.bins[index].host else Seat.DISK))
    return seated


def _seat_beside_leavers(ranked: Sequence[Draft], index: int, tally: Tally) -> list[tuple[Draft, Seat]]:
    """All fit once what leaves has left: until then those wait that are not there yet."""
    bin_ = tally.bins[index]
    free = bin_.budget - tally.others[index]
    there = [each.item.asked.get(bin_.name) is Tier.GPU for each in ranked]
    free -= sum(each.item.bytes for each, is_there in zip(ranked, there, strict=True) if is_there)
    seated = []
    for draft, is_there in zip(ranked, there, strict=True):
        fits = is_there or draft.item.bytes <= free
        if fits and not is_there:
            free -= draft.item.bytes
        seated.append((draft, (Seat.PINNED if draft.item.pinned else Seat.GPU) if fits else Seat.HOST))
    return seated


def _worth(draft: Draft, name: str) -> float:
    """Use for each byte."""
    asked = draft.item.asked.get(name)
    return draft.share / max(draft.item.bytes, 1) * (STICKS if asked in (Tier.GPU, Tier.HOST) else 1.0)
