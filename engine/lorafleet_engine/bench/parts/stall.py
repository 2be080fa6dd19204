"""What running decodes feel of other work: of cold adapters streaming in, and of a long prompt computed in chunks."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lorafleet_engine.bench.bench import Batch, Bench, Case, median, rounded
from lorafleet_engine.bench.session import BenchError, EnginePlan, Run, Session
from lorafleet_engine.messages import LoadAdapter, ToLoop

SETTLE = 8
"""Steps after the last prompt that are not looked at."""
LATEST = 3
"""Loads must end within so many steps each, sent one a step, or there is no figure."""


def cases(bench: Bench) -> Iterator[Case]:
    """The loads; the prompt comes with the long windows, in long.py."""
    yield Case("load-stall", lambda: _loads(bench))


def percentile_99(values: Sequence[float]) -> float:
    """The value that 99 % do not exceed (nearest rank)."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


@dataclass(frozen=True, slots=True)
class _Beside:
    """Decodes over mixed adapters that all run through `quiet` steps at first, then through `watched` ones."""

    bench: Bench
    session: Session
    batch: Batch
    quiet: int
    watched: int

    def run(self, seed: int, disturb: Sequence[Sequence[ToLoop]]) -> tuple[str, Run]:
        """One run, with one item of `disturb` sent before each step after the quiet ones; the first request's id."""
        drawn = self.bench.prompts(self.batch.rows, self.batch.prompt, seed)
        requests = self.session.requests(drawn, self.batch.per_row(), self.quiet + self.watched)
        feed: list[Sequence[ToLoop]] = [requests, *[()] * (self.quiet - 1), *disturb]
        return requests[0].request_id, self.session.run(feed)

    def steady(self, seed: int) -> list[float]:
        """Seconds between tokens without a disturbance."""
        first, run = self.run(seed, [])
        return run.gaps(first, self.quiet)


def _beside(bench: Bench, plan: EnginePlan, watched: int) -> _Beside:
    dims, session = bench.dims, bench.session(plan)
    adapters = bench.adapters(dims.distinct[-1], "mixed")
    batch = Batch(dims.beside, dims.prompt, tuple(adapters))
    session.keep(batch.used)
    quiet = math.ceil(batch.rows * batch.prompt / (plan.limits.tokens - batch.rows)) + SETTLE
    return _Beside(bench, session, batch, quiet, watched)


def _loads(bench: Bench) -> dict[str, Any]:
    dims, plan = bench.dims, bench.plan()
    beside = _beside(bench, plan, LATEST * dims.loads + SETTLE)
    active = list(beside.batch.used)
    cold = bench.catalogue.take(range(len(active), len(active) + dims.loads))

    def loading(seed: int) -> list[float]:
        first, run = beside.run(seed, [[LoadAdapter(blob.key, blob.ref)] for blob in cold])
        beside.session.note_resident(cold)
        beside.session.keep(active)
        end = max(run.loaded.values())
        during = sum(at <= end for at in run.times[first])
        if during == len(run.times[first]):
            raise BenchError("the decodes ended before the loads")
        return run.gaps(first, beside.quiet - 1, max(during + 1, beside.quiet + len(cold)))

    steady, loaded = _pairs(bench, beside.steady, loading)
    return {
        "case": "load-stall",
        "batch": beside.batch.rows,
        "loads": len(cold),
        "loaded_bytes": sum(blob.ref.bytes for blob in cold),
        "from": "packed files in memory, one load sent before each step; all steps until the last one has arrived",
        **_ratios("p99_ratio", steady, loaded),
        "caps": plan.caps(),
    }


def chunked(bench: Bench) -> dict[str, Any]:
    """A long prompt in chunks beside the decodes. Called by long.py."""
    dims = bench.dims
    chunks = math.ceil(dims.chunk / dims.chunk_tokens)
    plan = bench.long_plan(dims.beside + dims.chunk_tokens, dims.beside + 1)
    beside = _beside(bench, plan, max(chunks, dims.loads) + SETTLE)

    prompt_s: list[float] = []

    def disturbed(seed: int) -> list[float]:
        session = beside.session
        long = session.requests(bench.prompts(1, dims.chunk, seed), [None], 1)
        first, run = beside.run(seed, [long])
        end = run.times[long[0].request_id][0]
        during = sum(at <= end for at in run.times[first])
        prompt_s.append(end - run.times[first][beside.quiet - 1])
        return run.gaps(first, beside.quiet - 1, max(during, beside.quiet + 1))

    steady, loaded = _pairs(bench, beside.steady, disturbed)
    return {
        "case": "chunked-prefill",
        "batch": beside.batch.rows,
        "prompt": dims.chunk,
        "prompt_s": median(prompt_s),
        **_ratios("itl_p99_ratio", steady, loaded),
        "caps": plan.caps(),
    }


def _pairs(
    bench: Bench, steady: Callable[[int], list[float]], disturbed: Callable[[int], list[float]]
) -> tuple[list[list[float]], list[list[float]]]:
    """Both kinds of run by turns, after one of each to warm up."""
    steady(1)
    disturbed(1)
    pairs = [(steady(seed), disturbed(seed)) for seed in range(2, 2 + bench.options.repeats)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _ratios(name: str, steady: list[list[float]], disturbed: list[list[float]]) -> dict[str, Any]:
    """The median over the repeats of p99 over the steady p99, and the distributions behind it, in ms."""
    ratios = [percentile_99(after) / percentile_99(before) for before, after in zip(steady, disturbed, strict=True)]
    return {
        name: median(ratios),
        "steady_ms": _distribution(steady),
        "disturbed_ms": _distribution(disturbed),
        "repeats": rounded(ratios),
    }


def _distribution(runs: list[list[float]]) -> dict[str, float]:
    every = [gap * 1e3 for run in runs for gap in run]
    return {
        "p50": round(statistics.median(every), 3),
        "p99": round(percentile_99(every), 3),
        "max": round(max(every), 3),
        "steps": len(every),
    }
