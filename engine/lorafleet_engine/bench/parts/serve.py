"""Serving, warm: 512 requests at once over a catalogue of 200 adapters, at two popularities and on the base alone."""

from collections.abc import Iterator
from typing import Any

from lorafleet_engine.bench.bench import Bench, Case, median, rounded
from lorafleet_engine.bench.serving import traffic, warm


def cases(bench: Bench) -> Iterator[Case]:
    """The base first, then few favourites (1.0), then nearly even popularity (0.1)."""
    for zipf in (None, 1.0, 0.1):
        yield _case(bench, zipf)


def _case(bench: Bench, zipf: float | None) -> Case:
    def run() -> dict[str, Any]:
        plan = bench.plan()
        session = bench.session(plan)
        load = traffic(bench, zipf)
        seconds = warm(bench, session, zipf)
        return {
            "case": "serve",
            "zipf": zipf,
            "state": "warm",
            "tok_s": load.tokens_per_second(median(seconds)),
            "wall_s": median(seconds),
            "requests": bench.dims.requests,
            "distinct": len(load.distinct),
            "rank_sum": sum(blob.rank for blob in load.distinct),
            "resident_bytes": sum(blob.ref.bytes for blob in load.distinct),
            "kv_tokens": session.core.plan.budget.kv_tokens,
            "repeats_s": rounded(seconds),
            "caps": plan.caps(),
        }

    return Case(f"zipf={zipf}", run)
