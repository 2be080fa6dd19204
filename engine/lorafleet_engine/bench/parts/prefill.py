"""Prompts alone: the time to one token of every sequence, with 32 adapters of all ranks over the own base."""

from collections.abc import Iterator
from typing import Any

from lorafleet_engine.bench.bench import Batch, Bench, Case, answer_seconds, median, rounded
from lorafleet_engine.bench.session import EnginePlan


def cases(bench: Bench) -> Iterator[Case]:
    """One case a batch; its base is run right before it."""
    dims = bench.dims
    for rows in dims.prefill_batches:
        yield _case(bench, bench.narrow_plan(), rows)


def _case(bench: Bench, plan: EnginePlan, rows: int) -> Case:
    def run() -> dict[str, Any]:
        session = bench.session(plan)
        adapters = tuple(bench.adapters(bench.dims.distinct[-1], "mixed"))
        session.keep(adapters)

        def milliseconds(batch: Batch) -> list[float]:
            return bench.repeated(lambda seed: answer_seconds(bench, session, batch, 1, seed) * 1e3)

        base = milliseconds(Batch(rows, bench.dims.prompt))
        mixed = milliseconds(Batch(rows, bench.dims.prompt, adapters))
        return {
            "case": "prefill",
            "batch": rows,
            "prompt": bench.dims.prompt,
            "adapters": len(adapters),
            "rank": "mixed",
            "ms": median(mixed),
            "own_base_ms": median(base),
            "ratio": round(median(mixed) / median(base), 4),
            "repeats_ms": rounded(mixed),
            "caps": plan.caps(),
        }

    return Case(f"B={rows}", run)
