"""Moves that pay: versions that go from replicas with much load, or with more bytes than fit, to others.

Called by placement.py when all that must be is placed. Only versions on one replica move; those on several are evened
out by who picks among them.
"""

from lorafleet_operator.core.tally import CROWDING, Draft, Tally

LEAST_GAIN = 0.001
"""What a move must gain at least (sum over replicas of squared load, in even shares, and of what CROWDING says)..."""
PRICE = 0.5
"""...besides this share of what the version's own load contributes, which is never known exactly, and the more of its
bytes the less sure it is whether they are on the GPU (none where all fit)."""
SOURCES = 2
"""Replicas looked at, of those with most load and of those with most excess."""


def rebalance(tally: Tally, moves: int, reason: str) -> int:
    """Make the moves that gain most, `moves` at most; returns how many were made."""
    made = 0
    while made < moves:
        best = _best(tally)
        if best is None:
            break
        _, _, draft, index = best
        tally.move(draft, index, reason)
        made += 1
    return made


def _best(tally: Tally) -> tuple[float, str, Draft, int] | None:
    excess = [max(needs / max(each.budget, 1) - 1, 0.0) for needs, each in zip(tally.needs, tally.bins, strict=True)]
    order = range(len(tally.bins))
    sources = {*sorted(order, key=lambda index: (-excess[index], index))[:SOURCES]} if any(excess) else set()
    if tally.pull:
        sources |= {*sorted(order, key=lambda index: (-tally.load[index], index))[:SOURCES]}
    best: tuple[float, str, Draft, int] | None = None
    if not sources:
        return None
    for draft in tally.drafts:
        if len(draft.chosen) != 1 or draft.chosen[0] not in sources or not _may_move(draft, tally):
            continue
        gain, index = _gain(draft, tally)
        if gain > 0 and (best is None or (gain, draft.item.key) > best[:2]):
            best = (gain, draft.item.key, draft, index)
    return best


def _may_move(draft: Draft, tally: Tally) -> bool:
    """Whether it serves where it is: what is on its way, or has a surplus copy, is left alone."""
    return not draft.item.fixed and draft.item.holders == {tally.bins[draft.chosen[0]].name}


def _gain(draft: Draft, tally: Tally) -> tuple[float, int]:
    """The most that a move of this version gains beyond its price, and where it goes."""
    [source], share, size = draft.chosen, draft.share, draft.item.bytes
    tally.load[source] -= share
    tally.needs[source] -= draft.need
    doubt = draft.need * (size - draft.need) / max(tally.bins[source].budget, 1) ** 2
    limit = tally.burden(draft, source) - LEAST_GAIN - PRICE * tally.pull * draft.seen**2 - CROWDING * doubt
    tally.load[source] += share
    tally.needs[source] += draft.need
    best, where = 0.0, source
    for index, each in enumerate(tally.bins):
        if index == source or tally.pins[index] + size > each.budget or each.name in draft.item.avoid:
            continue
        gain = limit - tally.burden(draft, index)
        if gain > best:
            best, where = gain, index
    return best, where
