"""What small adapters wait for large neighbours: the forecast by which rank classes are split, against measured steps.

Requests of adapters of rank 8 and 128 arrive at random for some seconds, of all adapters and of the small ones only, as
after a split. As the operator does, the mean step of the mixed seconds says what steps cost, and from that both are
foretold. Pauses in which a prompt was computed are left out: the forecast is about decode steps.
"""

import bisect
import hashlib
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from lorafleet_contracts.capacity import PROJECTIONS, weight_bytes
from lorafleet_contracts.forecast import Forecast, Member, StepModel, forecast, model_of, ranks_in_step
from lorafleet_engine.bench.bench import Bench, Case
from lorafleet_engine.bench.catalogue import DTYPE_NAMES, Blob
from lorafleet_engine.bench.engine import RandomSource, packed, random_adapter
from lorafleet_engine.bench.session import Run, Session
from lorafleet_engine.messages import BlobRef, Generate

FIRST_NUMBER = 7000
"""Beyond the catalogue's: these have ranks of their own."""
PROMPT = 8
SECONDS = 6.0
SMALL_SECONDS = 1.0
SETTLE = 1.0
"""Seconds at the beginning in which the number of running requests still grows."""


@dataclass(frozen=True, slots=True)
class Kind:
    """So many adapters of one rank, each asked for so often per second, for answers of so many tokens."""

    rank: int
    count: int
    requests_per_s: float
    answer: int


LOW = Kind(rank=8, count=32, requests_per_s=0.5, answer=160)
HIGH = Kind(rank=128, count=12, requests_per_s=1.5, answer=160)
SMALL_LOW = Kind(rank=8, count=3, requests_per_s=4.0, answer=12)
SMALL_HIGH = Kind(rank=16, count=2, requests_per_s=4.0, answer=12)
"""For the tiny model."""


@dataclass(frozen=True, slots=True)
class Arm:
    """The pauses of small adapters' answers in seconds, sorted, and what was asked of every adapter."""

    gaps: list[float]
    members: list[Member]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.gaps)

    @property
    def p99(self) -> float:
        """What 99 % of them stay below."""
        return self.gaps[min(len(self.gaps) * 99 // 100, len(self.gaps) - 1)]


def cases(bench: Bench) -> Iterator[Case]:
    """Both ways of sharing in one case: one foretells the other."""
    yield Case("mixed and split", lambda: _run(bench))


def _run(bench: Bench) -> dict[str, Any]:
    on_gpu = bench.device.type == "cuda"
    low, high = (LOW, HIGH) if on_gpu else (SMALL_LOW, SMALL_HIGH)
    seconds = SETTLE + (SECONDS if on_gpu else SMALL_SECONDS)
    session = bench.session(bench.narrow_plan())
    blobs = {kind: _adapters(bench, kind) for kind in (low, high)}
    session.keep([blob for found in blobs.values() for blob in found])
    _measure(bench, session, blobs, seed=1, seconds=SETTLE + 1.0)  # captures graphs
    mixed = _measure(bench, session, blobs, seed=2, seconds=seconds)
    split = _measure(bench, session, {low: blobs[low]}, seed=2, seconds=seconds)
    shape, size = bench.config.shape, bench.dtype.itemsize
    ranks, _ = ranks_in_step(mixed.members, 1, mixed.mean)
    model = model_of(mixed.mean, ranks, bench.floor.rank_unit_bytes, weight_bytes(shape, size))
    return {
        "case": "classes",
        "ranks": {str(kind.rank): kind.count for kind in (low, high)},
        "base_ms": round(model.base_seconds * 1e3, 4),
        "us_per_rank": round(model.seconds_per_rank * 1e6, 4),
        "mixed": _record(mixed, forecast(mixed.members, 1, model), model),
        "split": _record(split, forecast(split.members, 1, model), model),
    }


def _record(arm: Arm, said: Forecast, model: StepModel) -> dict[str, Any]:
    mean = model.base_seconds + model.seconds_per_rank * said.rank_sum
    return {
        "gaps": len(arm.gaps),
        "mean_ms": round(arm.mean * 1e3, 4),
        "p99_ms": round(arm.p99 * 1e3, 4),
        "forecast_rank_sum": round(said.rank_sum, 1),
        "forecast_mean_ms": round(mean * 1e3, 4),
        "forecast_p99_ms": round(said.itl_p99 * 1e3, 4),
        "p99_over_forecast": round(arm.p99 / said.itl_p99, 4),
    }


def _measure(bench: Bench, session: Session, blobs: dict[Kind, list[Blob]], *, seed: int, seconds: float) -> Arm:
    arrivals, small = _arrivals(bench, session, blobs, seed)
    due = [each for each in arrivals if each[0] <= seconds]
    run = session.run(_feed([(at, request) for at, request, _ in due]))
    members = [
        Member(kind.rank, sum(found is kind for _, _, found in due) * kind.answer / seconds / kind.count)
        for kind in blobs
        for _ in range(kind.count)
    ]
    return Arm(_decode_gaps(run, small & {request.request_id for _, request, _ in due}, seconds), members)


def _arrivals(
    bench: Bench, session: Session, blobs: dict[Kind, list[Blob]], seed: int
) -> tuple[list[tuple[float, Generate, Kind]], set[str]]:
    """Requests by the second at which they come, and the ids of those for the smallest rank."""
    draw, low = random.Random(seed), min(kind.rank for kind in blobs)
    found: list[tuple[float, Generate, Kind]] = []
    small: set[str] = set()
    for kind, adapters in blobs.items():
        for blob in adapters:
            at = draw.expovariate(kind.requests_per_s)
            while at <= SETTLE + SECONDS:
                prompt = bench.prompts(1, PROMPT, draw.randrange(1 << 30))
                [request] = session.requests(prompt, [blob], kind.answer)
                found.append((at, request, kind))
                if kind.rank == low:
                    small.add(request.request_id)
                at += draw.expovariate(kind.requests_per_s)
    return sorted(found, key=lambda each: each[0]), small


def _feed(arrivals: Sequence[tuple[float, Generate]]) -> Iterator[list[Generate]]:
    started, index = time.perf_counter(), 0
    while index < len(arrivals):
        now = time.perf_counter() - started
        first = index
        while index < len(arrivals) and arrivals[index][0] <= now:
            index += 1
        yield [request for _, request in arrivals[first:index]]


def _decode_gaps(run: Run, small: set[str], until: float) -> list[float]:
    """The pauses of these requests, without those in which some request's first token was computed."""
    firsts = sorted(times[0] for times in run.times.values() if times)
    gaps = []
    for name in small:
        for before, after in pairwise(run.times[name]):
            if SETTLE <= before <= until and not _any_between(firsts, before, after):
                gaps.append(after - before)
    return sorted(gaps)


def _any_between(moments: Sequence[float], after: float, until: float) -> bool:
    return bisect.bisect_right(moments, after) < bisect.bisect_right(moments, until + 1e-4)


def _adapters(bench: Bench, kind: Kind) -> list[Blob]:
    """Adapters of a rank that the catalogue need not have, in files of their own."""
    folder = Path(bench.options.sources) / f"{bench.dims.name}-classes"
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for index in range(kind.count):
        number = FIRST_NUMBER + 100 * kind.rank + index
        matrices = random_adapter(bench.config, RandomSource(bench.device, bench.dtype), number, kind.rank)
        data = packed(matrices).view(torch.uint8).cpu().numpy()
        path = folder / f"{number}-r{kind.rank}.blob"
        path.write_bytes(data.data)
        ranks = tuple((kind.rank,) * len(PROJECTIONS) for _ in range(bench.config.shape.layers))
        ref = BlobRef(str(path), path.stat().st_size, DTYPE_NAMES[bench.dtype], kind.rank, ranks)
        made.append(Blob(number, kind.rank, ref, hashlib.sha256(data.data).hexdigest()))
    return made
