"""Who asks for what, when: arrivals of a simulated run as columns. Called by the planner; deterministic by its seed.

Rates are requests per second, times are seconds since the start of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

PROMPT_TOKENS = 512
COMPLETION_TOKENS = 128
"""Lengths of requests where no trace gives any."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant (`namespace/name`) that calls an adapter (uid)."""

    tenant: str
    adapter: str


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One row a request, sorted by time; `callers` are places in the list that the run was given."""

    times: Floats
    prompt_tokens: Ints
    completion_tokens: Ints
    callers: Ints

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Shift:
    """From `at` on, an adapter's popularity is that of the one `by` places further down the list."""

    at: float
    by: int


@dataclass(frozen=True, slots=True)
class Burst:
    """Between two moments one tenant sends `rate` requests a second on top of everything, all to its first adapter."""

    tenant: str
    start: float
    end: float
    rate: float


def zipf_weights(count: int, skew: float) -> Floats:
    """Shares of `count` adapters, the first the most popular: proportional to 1 / place ** skew."""
    weights = 1.0 / np.arange(1, count + 1, dtype=np.float64) ** skew
    shares: Floats = weights / weights.sum()
    return shares


def even_times(rate: float, seconds: float) -> Floats:
    """Moments of arrivals at equal distances."""
    times: Floats = np.arange(int(rate * seconds), dtype=np.float64) / rate
    return times


def poisson_times(rate: float, seconds: float, random: np.random.Generator) -> Floats:
    """Moments of arrivals that do not know of one another."""
    count = int(random.poisson(rate * seconds))
    times: Floats = np.sort(random.uniform(0.0, seconds, count))
    return times


def overlay(
    lengths: Arrivals,
    groups: Sequence[Sequence[int]],
    skew: float,
    random: np.random.Generator,
    shifts: Sequence[Shift] = (),
) -> Arrivals:
    """Give each request an adapter by Zipf and one of that adapter's callers, each as often.

    `groups[i]` are the callers of the adapter in place i of the manifests; place 0 is the most popular one until the
    first shift.
    """
    places = random.choice(len(groups), size=len(lengths), p=zipf_weights(len(groups), skew))
    for shift in shifts:
        later = lengths.times >= shift.at
        places = np.where(later, (places + shift.by) % len(groups), places)
    sizes = np.array([len(each) for each in groups], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    flat = np.array([caller for group in groups for caller in group], dtype=np.int64)
    within = np.floor(random.random(len(lengths)) * sizes[places]).astype(np.int64)
    return replace(lengths, callers=flat[starts[places] + within])


def plain(times: Floats) -> Arrivals:
    """Requests of the usual lengths, callers not chosen yet."""
    count = len(times)
    return Arrivals(
        times,
        np.full(count, PROMPT_TOKENS, dtype=np.int64),
        np.full(count, COMPLETION_TOKENS, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
    )


def add_burst(arrivals: Arrivals, burst: Burst, callers: Sequence[Caller], random: np.random.Generator) -> Arrivals:
    """The same arrivals and a burst among them, its lengths drawn from theirs. Raises ValueError for a tenant that
    calls nothing."""
    mine = [place for place, caller in enumerate(callers) if caller.tenant == burst.tenant]
    if not mine:
        raise ValueError(f"tenant {burst.tenant} may call no adapter of the pool")
    times = burst.start + poisson_times(burst.rate, burst.end - burst.start, random)
    like = random.integers(0, len(arrivals), len(times))
    joined = np.concatenate((arrivals.times, times))
    order = np.argsort(joined, kind="stable")
    return Arrivals(
        joined[order],
        np.concatenate((arrivals.prompt_tokens, arrivals.prompt_tokens[like]))[order],
        np.concatenate((arrivals.completion_tokens, arrivals.completion_tokens[like]))[order],
        np.concatenate((arrivals.callers, np.full(len(times), mine[0], dtype=np.int64)))[order],
    )
