"""How much is asked of each adapter, tenant and replica: the engines' monotonic usage counters folded into rates.

Called by the pools' tasks before each plan, the planner and tests. Pure: `now` is in seconds of a clock that nobody
sets. What is forgotten is only ever the load of one interval, never counted twice.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from lorafleet_contracts.admin import UsageState
from lorafleet_contracts.resources.adapter import LoraAdapterStatus, PopularityStatus

FAST_SECONDS = 30.0
"""Time constant of what sizing follows: at 10 requests/s its own noise is 4 %."""
SLOW_SECONDS = 600.0
"""Time constant of what is meant by popular."""
FORGET_PER_SECOND = 1e-5
"""A slow rate below which nothing is remembered of a key: an hour after its only request."""
HOUR = 3600.0
LEAST_PER_HOUR = 1.0
"""Requests an hour from which on a status says anything of popularity."""
BUCKET_SLACK = 1.0
"""By how many doublings a rate may leave the bucket that a status shows before a new one is worth a write."""

Row = tuple[str, str, str]
"""(tenant, adapter version, gateway instance) of a usage row."""


@dataclass(frozen=True, slots=True)
class Pace:
    """One rate per second as two exponentially weighted means: over FAST_SECONDS and over SLOW_SECONDS."""

    fast: float = 0.0
    slow: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests that ended, and the tokens of their prompts and answers together, per second."""

    requests_per_s: Pace = Pace()
    tokens_per_s: Pace = Pace()


@dataclass(frozen=True, slots=True)
class Reading:
    """What one life of one replica has counted so far. `seq` tells whether anything can have changed since."""

    replica: str
    boot_id: str
    seq: int
    usage: tuple[UsageState, ...]


@dataclass(frozen=True, slots=True)
class _Baseline:
    boot_id: str
    seq: int
    counts: Mapping[Row, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Track:
    """The load of a pool as of `at` (None: never folded), and what the next fold differs from.

    `adapters` by uid (the base by names.BASE_MODEL), `tenants` by "namespace/name" and then by uid, `replicas` by name.
    `total` is the pool's.
    """

    adapters: Mapping[str, Rates] = field(default_factory=dict)
    tenants: Mapping[str, Mapping[str, Rates]] = field(default_factory=dict)
    replicas: Mapping[str, Rates] = field(default_factory=dict)
    total: Rates = Rates()
    at: float | None = None
    baselines: Mapping[str, _Baseline] = field(default_factory=dict, repr=False)


def fold(track: Track, readings: Iterable[Reading], now: float) -> Track:
    """The track after another look at all replicas that answer.

    The first reading of a replica's life is its base line, and so is one that went backwards; a replica that does not
    answer has none. Nothing is counted when the clock has not moved on.
    """
    seconds = 0.0 if track.at is None else now - track.at
    if track.at is not None and seconds <= 0:
        return track
    pairs: Counter[tuple[str, str]] = Counter()
    tokens: Counter[tuple[str, str]] = Counter()
    done: dict[str, tuple[int, int]] = {}
    baselines: dict[str, _Baseline] = {}
    for reading in readings:
        before = track.baselines.get(reading.replica)
        same_life = before is not None and before.boot_id == reading.boot_id
        if before is not None and same_life and before.seq == reading.seq:
            baselines[reading.replica], done[reading.replica] = before, (0, 0)
            continue
        counts = _count(reading.usage)
        baselines[reading.replica] = _Baseline(reading.boot_id, reading.seq, counts)
        known = before.counts if before is not None and same_life else None
        done[reading.replica] = _add(known, counts, pairs, tokens)
    weights = _weights(seconds)
    return Track(
        adapters=_fold_keys(track.adapters, _sum_by(pairs, 1), _sum_by(tokens, 1), weights),
        tenants=_fold_tenants(track.tenants, pairs, tokens, weights),
        replicas={name: _step(track.replicas.get(name, Rates()), *counted, weights) for name, counted in done.items()},
        total=_step(track.total, pairs.total(), tokens.total(), weights),
        at=now,
        baselines=baselines,
    )


def warm(statuses: Iterable[tuple[str, LoraAdapterStatus]]) -> Track:
    """A track to begin with: what the statuses of these (uid, status) last said of each adapter's popularity."""
    adapters = {}
    for uid, status in statuses:
        if status.popularity is not None:
            requests, tokens = (2.0**each / HOUR for each in (status.popularity.requests, status.popularity.tokens))
            adapters[uid] = Rates(Pace(requests, requests), Pace(tokens, tokens))
    requests, tokens = (
        math.fsum(getattr(each, name).slow for each in adapters.values()) for name in ("requests_per_s", "tokens_per_s")
    )
    return Track(adapters=adapters, total=Rates(Pace(requests, requests), Pace(tokens, tokens)))


def without(track: Track, tenants: Collection[str]) -> Track:
    """The track less what these tenants ("namespace/name") ask for, in adapters and total; all else as it is."""
    gone: dict[str, list[Rates]] = defaultdict(list)
    for tenant in tenants:
        for uid, rates in track.tenants.get(tenant, {}).items():
            gone[uid].append(rates)
    if not gone:
        return track
    adapters = {uid: _less(rates, gone.get(uid, ())) for uid, rates in track.adapters.items()}
    every = [each for rates in gone.values() for each in rates]
    return replace(track, adapters=adapters, total=_less(track.total, every))


def bucket(rates: Rates | None, shown: PopularityStatus | None) -> PopularityStatus | None:
    """What a status says of an adapter's slow rates: None below one request an hour. `shown` is what it says now, and
    stays as long as it is about true."""
    rates = rates or Rates()
    if rates.requests_per_s.slow * HOUR < (LEAST_PER_HOUR / 2 if shown else LEAST_PER_HOUR):
        return None
    slow = (rates.requests_per_s.slow, rates.tokens_per_s.slow)
    requests, tokens = (math.log2(max(each * HOUR, 1.0)) for each in slow)
    if shown and abs(requests - shown.requests) <= BUCKET_SLACK and abs(tokens - shown.tokens) <= BUCKET_SLACK:
        return shown
    return PopularityStatus(requests=round(requests), tokens=round(tokens))


def _less(rates: Rates, gone: Iterable[Rates]) -> Rates:
    """A tenant's own means are rounded otherwise than an adapter's: never below nothing."""
    for each in gone:
        rates = Rates(_apart(rates.requests_per_s, each.requests_per_s), _apart(rates.tokens_per_s, each.tokens_per_s))
    return rates


def _apart(pace: Pace, gone: Pace) -> Pace:
    return Pace(max(pace.fast - gone.fast, 0.0), max(pace.slow - gone.slow, 0.0))


def _count(usage: Iterable[UsageState]) -> dict[Row, tuple[int, int]]:
    return {
        (each.tenant, each.adapter, each.gateway): (each.requests, each.prompt_tokens + each.completion_tokens)
        for each in usage
    }


def _add(
    known: Mapping[Row, tuple[int, int]] | None,
    counts: Mapping[Row, tuple[int, int]],
    requests: Counter[tuple[str, str]],
    tokens: Counter[tuple[str, str]],
) -> tuple[int, int]:
    """Add a replica's differences by (tenant, adapter's uid); returns their sums."""
    if known is None:
        return 0, 0
    ended = spent = 0
    for row, now in counts.items():
        before = known.get(row, (0, 0))
        if now == before or now[0] < before[0] or now[1] < before[1]:
            continue
        key = row[0], row[1].partition("@")[0]
        requests[key] += now[0] - before[0]
        tokens[key] += now[1] - before[1]
        ended, spent = ended + now[0] - before[0], spent + now[1] - before[1]
    return ended, spent


def _sum_by(counts: Mapping[tuple[str, str], int], part: int) -> Counter[str]:
    sums: Counter[str] = Counter()
    for key, count in counts.items():
        sums[key[part]] += count
    return sums


@dataclass(frozen=True, slots=True)
class _Weights:
    """Of one interval: its share of each mean, and its length (0: only a base line was taken)."""

    fast: float
    slow: float
    seconds: float


def _weights(seconds: float) -> _Weights:
    return _Weights(-math.expm1(-seconds / FAST_SECONDS), -math.expm1(-seconds / SLOW_SECONDS), seconds)


def _step(rates: Rates, requests: int, tokens: int, weights: _Weights) -> Rates:
    return Rates(_blend(rates.requests_per_s, requests, weights), _blend(rates.tokens_per_s, tokens, weights))


def _blend(pace: Pace, count: int, weights: _Weights) -> Pace:
    if weights.seconds <= 0:
        return pace
    seen = count / weights.seconds
    return Pace(pace.fast + weights.fast * (seen - pace.fast), pace.slow + weights.slow * (seen - pace.slow))


def _fold_keys(
    known: Mapping[str, Rates], requests: Mapping[str, int], tokens: Mapping[str, int], weights: _Weights
) -> dict[str, Rates]:
    nothing = Rates()
    stepped = {
        key: _step(known.get(key, nothing), requests.get(key, 0), tokens.get(key, 0), weights)
        for key in known.keys() | requests.keys()
    }
    return {key: each for key, each in stepped.items() if each.requests_per_s.slow >= FORGET_PER_SECOND}


def _fold_tenants(
    known: Mapping[str, Mapping[str, Rates]],
    requests: Mapping[tuple[str, str], int],
    tokens: Mapping[tuple[str, str], int],
    weights: _Weights,
) -> dict[str, dict[str, Rates]]:
    asked: dict[str, dict[str, int]] = defaultdict(dict)
    spent: dict[str, dict[str, int]] = defaultdict(dict)
    for (tenant, uid), count in requests.items():
        asked[tenant][uid], spent[tenant][uid] = count, tokens[tenant, uid]
    folded = {
        tenant: _fold_keys(known.get(tenant, {}), asked.get(tenant, {}), spent.get(tenant, {}), weights)
        for tenant in known.keys() | asked.keys()
    }
    return {tenant: rates for tenant, rates in folded.items() if rates}
