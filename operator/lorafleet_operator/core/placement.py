"""Which replicas of one set an adapter version belongs on, on which tier, and why. Pure arithmetic.

Called by residency.py with what must be somewhere. Order: what is placed stays; what must be somewhere is placed; then,
as far as `Policy.moves` allows, hot versions get more copies and moves that pay are made; tiers come last (tiers.py).
Laws: what a replica should have on its GPU fits its budget, and anything else on it can still be raised beside that;
every version that fits some replica is on one; pinned and hot ones are on 1 + redundancy replicas, in different failure
domains while there are any; the same input gives the same places, and placing what was placed changes nothing.
"""

from collections.abc import Iterable, Mapping

from lorafleet_operator.core.moves import rebalance
from lorafleet_operator.core.places import (
    BALANCE,
    HOT,
    LEAST_LOADED,
    REDUNDANCY,
    SPREAD,
    STAYS,
    Bin,
    Choice,
    Item,
    Placed,
    Placement,
    Policy,
)
from lorafleet_operator.core.tally import Draft, Tally
from lorafleet_operator.core.tiers import Seat, seat_all


def place(items: Iterable[Item], bins: Iterable[Bin], policy: Policy) -> Placement:
    """Choose replicas and tiers for every item."""
    every = sorted(bins, key=lambda each: each.name)
    staying = [each for each in every if not each.leaving] or every
    tally = Tally(
        staying, sorted(items, key=lambda each: (not each.pinned, -each.priority, each.age, each.key)), policy
    )
    _keep(tally)
    _place_what_must_be(tally)
    moves = _heat(tally, policy.moves)
    moves += rebalance(tally, policy.moves - moves, BALANCE)
    seats = seat_all(tally)
    return Placement({draft.item.key: _settle(draft, tally, seats) for draft in tally.drafts}, moves)


def _keep(tally: Tally) -> None:
    """What is placed stays; of a surplus, those that are left go where the load is highest."""
    surplus = []
    for draft in tally.drafts:
        names = draft.item.holders
        live = [tally.at[name] for name in sorted(names) if name in tally.at] if names else []
        if len(live) > draft.keep:
            surplus.append((draft, live))
            continue
        for index in live:
            tally.add(draft, index, draft.item.reasons.get(tally.bins[index].name, STAYS))
    for draft, live in surplus:
        for index in live:
            tally.leave(draft, index)
        while len(draft.chosen) < draft.keep:
            index = tally.best_of(draft, [each for each in live if each not in draft.chosen])
            tally.stay(draft, index, draft.item.reasons.get(tally.bins[index].name, STAYS))


def _place_what_must_be(tally: Tally) -> None:
    """Large ones first, so that the last ones even out what is left."""
    missing = [draft for draft in tally.drafts if len(draft.chosen) < draft.must]
    missing.sort(key=lambda each: (not each.item.pinned, -each.item.priority, -each.weight))
    for draft in missing:
        while len(draft.chosen) < draft.must:
            index = tally.best(draft)
            if index is None:
                break
            tally.add(draft, index, _reason(draft))


def _reason(draft: Draft) -> str:
    number = len(draft.chosen)
    if number == 0:
        return LEAST_LOADED
    if number < draft.item.count:
        return SPREAD
    return REDUNDANCY if number < draft.safe else HOT


def _heat(tally: Tally, moves: int) -> int:
    """More copies of hot versions, hottest first; returns how many."""
    made = 0
    if moves <= 0:
        return 0
    wanting = [draft for draft in tally.drafts if draft.chosen and len(draft.chosen) < draft.wish]
    for draft in sorted(wanting, key=lambda each: (-each.item.load / len(each.chosen), each.item.key)):
        while made < moves and len(draft.chosen) < draft.wish:
            index = tally.best(draft)
            if index is None:
                break
            tally.add(draft, index, _reason(draft))
            made += 1
    return made


def _settle(draft: Draft, tally: Tally, seats: Mapping[tuple[str, int], Seat]) -> Placed:
    key = draft.item.key
    choices = []
    for index, reason in zip(draft.chosen, draft.reasons, strict=True):
        seat = seats.get((key, index), Seat.GPU)
        choices.append(Choice(tally.bins[index].name, reason, seat.tier, seat is Seat.PINNED))
    if len(choices) >= draft.must or not tally.bins:
        return Placed(tuple(choices))
    room = [
        tally.bins[index].budget - tally.pins[index] for index in range(len(tally.bins)) if index not in draft.chosen
    ]
    return Placed(tuple(choices), max(room, default=None))
