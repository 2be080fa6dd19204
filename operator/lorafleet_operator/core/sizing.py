"""How many replicas a set needs for what is asked of it. Called by fleet.py for each set that follows its load. Pure.

It grows at once and shrinks when its owner's window has passed in which fewer were always enough. Nothing but the
history of those needs is remembered; without one (a new process) the present size stands for as long.
"""

import math
from dataclasses import dataclass

from lorafleet_operator.core.capability import HEADROOM_PERCENT, Capacity
from lorafleet_operator.core.popularity import Rates

LEARNING_SECONDS = 90.0
"""How long a new process needs at least to know a load: three times the time constant of what it measures."""
IDLE_PER_SECOND = 0.002
"""A rate of requests below which nothing is asked: four minutes after ten a second have ended."""
BACKLOG_SECONDS = 30.0
"""Within which requests that wait should be answered beside those that come."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the owner says: at least, at most, how many may be lost without the load losing its room, and for how many
    seconds fewer must have been enough before there are fewer."""

    least: int
    most: int
    redundancy: int
    window: float


@dataclass(frozen=True, slots=True)
class Needs:
    """A set's needs of late, in epoch seconds: `began` is since when they are known, `peaks` are (at, replicas), newest
    last, of which each is larger than all that follow."""

    began: float
    peaks: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SizingCase:
    """One set. `present` replicas are wanted now (None: there is no such set yet), `waiting` requests queue at them,
    and `resident` replicas at least hold what must stay on a GPU. `needs` None: nothing is known of before."""

    load: Rates
    waiting: int
    capacity: Capacity
    bounds: Bounds
    present: int | None
    resident: int
    needs: Needs | None
    now: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """The size, what the load alone needs now, why, and the epoch second from which it may be smaller."""

    replicas: int
    need: int
    reason: str
    due: float | None = None


@dataclass(frozen=True, slots=True)
class _Demand:
    replicas: int
    words: str


def size(case: SizingCase) -> Sizing:
    """The size of a set for this moment."""
    bounds, present = case.bounds, case.present
    spare = max((present or 0) - bounds.redundancy, 0)
    demand = _demand(case, spare)
    need = _clamp(demand.replicas + bounds.redundancy if demand.replicas else 0, bounds)
    words = f"{demand.words}, {bounds.redundancy} to lose; from {bounds.least} to {bounds.most}"
    if present is None or need >= present:
        return Sizing(need, need, f"{need} for {words}")
    kept = _clamp(max(need, min(case.resident, present)), bounds)
    why = f"{kept} hold what must stay on a GPU" if kept > need else f"{kept} for {words}"
    recent = [each for each in (case.needs.peaks if case.needs else ()) if each[0] > case.now - bounds.window]
    known_at = (case.needs.began if case.needs else case.now) + max(bounds.window, LEARNING_SECONDS)
    peak = max((replicas for _, replicas in recent), default=0)
    if known_at > case.now:
        peak = max(peak, present)
    stays = min(max(kept, peak), max(present, bounds.least), bounds.most)
    if stays <= kept:
        return Sizing(kept, need, why)
    ends = [at + bounds.window for at, replicas in recent if replicas >= stays] or [known_at]
    return Sizing(stays, need, f"{stays} until fewer were enough for {bounds.window:.0f} s; now {why}", min(ends))


def remember(before: Needs | None, need: int, now: float) -> Needs:
    """The needs with one more. Of what is kept each is larger than all that follow, so that it is never much."""
    began = now if before is None else before.began
    known = before.peaks if before else ()
    kept = tuple(each for each in known if each[1] > need)
    return Needs(began, (*kept, (now, need)))


def _demand(case: SizingCase, spare: int) -> _Demand:
    """Replicas for the load alone, by requests or by tokens, whichever needs more.

    The headroom inside a capacity is there to be used: a set grows only once it is used up.
    """
    requests = case.load.requests_per_s.fast + case.waiting / BACKLOG_SECONDS
    if requests < IDLE_PER_SECOND:
        return _Demand(0, "no requests")
    tokens = case.load.tokens_per_s.fast
    per_replica, tokens_each = case.capacity.effective_requests_per_s, case.capacity.effective_tokens_per_s
    source = "measured" if case.capacity.measured else "assumed"
    found = [
        _Demand(_replicas_for(requests, per_replica, spare), f"{requests:.3g} requests/s at {per_replica:.3g} each")
    ]
    if tokens_each is not None:
        words = f"{tokens:.4g} tokens/s at {tokens_each:.4g} each"
        found.append(_Demand(_replicas_for(tokens, tokens_each, spare), words))
    most = max(found, key=lambda each: each.replicas)
    return _Demand(most.replicas, f"{most.words} ({source})")


def _replicas_for(demand: float, each: float, spare: int) -> int:
    exact = math.ceil(demand / each - 1e-9)
    in_headroom = spare > 0 and demand <= spare * each / (1 - HEADROOM_PERCENT / 100)
    return min(exact, spare) if in_headroom else exact


def _clamp(replicas: int, bounds: Bounds) -> int:
    return min(max(replicas, bounds.least), bounds.most)


def shift(needs: Needs, seconds: float) -> Needs:
    """The same needs by a clock that is ahead."""
    return Needs(needs.began + seconds, tuple((at + seconds, replicas) for at, replicas in needs.peaks))
