"""Decode steps: batches x adapters x ranks, and long contexts of the base, each beside the same engine's own base."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lorafleet_engine.bench.bench import Batch, Bench, Case, decode_ms, median, rounded
from lorafleet_engine.bench.options import TINY, Dims
from lorafleet_engine.bench.session import EnginePlan

KINDS = ("16", "64", "mixed")
BARRED = {
    (1, 1, "16"),
    (64, 1, "16"),
    (64, 8, "16"),
    (64, 32, "16"),
    (64, 32, "64"),
    (64, 32, "mixed"),
    (256, 8, "16"),
    (256, 32, "16"),
}
"""Batch, adapters, rank."""


def cases(bench: Bench) -> Iterator[Case]:
    """The rows that have a bar, smallest batch first."""
    return matrix(bench, barred=True)


def matrix(bench: Bench, *, barred: bool) -> Iterator[Case]:
    """The rows of design section 1 that have a bar, or all others (matrix.py)."""
    plan, rows = bench.narrow_plan(), _Matrix(bench)
    for batch in bench.dims.batches:
        if barred:
            yield rows.base(plan, batch, bench.dims.prompt)
        for kind, count in _adapters(bench.dims, batch):
            if ((batch, count, kind) in BARRED) is barred or bench.dims is TINY:
                yield rows.adapted(plan, batch, count, kind)


def _adapters(dims: Dims, batch: int) -> Iterator[tuple[str, int]]:
    for kind in KINDS:
        for count in dims.distinct:
            if count <= batch and (kind == "16" or count > 1) and (kind != "mixed" or count == dims.distinct[-1]):
                yield kind, count


class _Matrix:
    """Remembers the base's times of this very run: they are what adapters' are held against."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._own_base: dict[tuple[EnginePlan, int], list[float]] = {}

    def base(self, plan: EnginePlan, batch: int, prompt: int) -> Case:
        def run() -> dict[str, Any]:
            session = self._bench.session(plan)
            session.keep([])
            times = decode_ms(self._bench, session, Batch(batch, prompt))
            self._own_base[plan, batch] = times
            return self._record(plan, Batch(batch, prompt), "none", times)

        return Case(f"base B={batch} context={prompt}", run)

    def adapted(self, plan: EnginePlan, rows: int, count: int, kind: str) -> Case:
        def run() -> dict[str, Any]:
            bench = self._bench
            session = bench.session(plan)
            batch = Batch(rows, bench.dims.prompt, tuple(bench.adapters(count, kind)))
            session.keep(batch.used)
            if (plan, rows) not in self._own_base:
                self._own_base[plan, rows] = decode_ms(bench, session, Batch(rows, bench.dims.prompt))
            return self._record(plan, batch, kind, decode_ms(bench, session, batch))

        return Case(f"adapters={count} rank={kind} B={rows}", run)

    def _record(self, plan: EnginePlan, batch: Batch, kind: str, times: list[float]) -> dict[str, Any]:
        context = batch.prompt + self._bench.dims.decode_steps // 2
        own = median(self._own_base[plan, batch.rows])
        return decode_record(self._bench, Measured(plan, batch, context, kind), times, own)


@dataclass(frozen=True, slots=True)
class Measured:
    """What decode steps were measured of: `context` is the mean during them, `kind` the adapters' ranks."""

    plan: EnginePlan
    batch: Batch
    context: int
    kind: str


def decode_record(bench: Bench, what: Measured, times: list[float], own_base_ms: float) -> dict[str, Any]:
    """The record of a decode case."""
    rank_sum = sum(blob.rank for blob in what.batch.used)
    floor = bench.floor.of(rank_sum, what.context * what.batch.rows).fields()
    return {
        "case": "decode",
        "batch": what.batch.rows,
        "context": what.context,
        "adapters": len(what.batch.used),
        "rank": what.kind,
        "rank_sum": rank_sum,
        "ms": median(times),
        "own_base_ms": own_base_ms,
        "over_own_base": round(median(times) / own_base_ms, 4),
        **floor,
        "over_floor": round(median(times) / floor["floor_ms"], 4),
        "repeats_ms": rounded(times),
        "caps": what.plan.caps(),
    }
