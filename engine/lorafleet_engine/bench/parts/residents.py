"""What idle adapters cost: decode steps with one active adapter, all of the catalogue resident over it alone."""

from collections.abc import Iterator
from typing import Any

from lorafleet_engine.bench.bench import Batch, Bench, Case, decode_ms, median, rounded


def cases(bench: Bench) -> Iterator[Case]:
    """One case, at the batch that the disturbance cases use too."""
    yield Case(f"B={bench.dims.beside}", lambda: _run(bench))


def _run(bench: Bench) -> dict[str, Any]:
    plan = bench.plan()
    session = bench.session(plan)
    active = bench.adapters(1, "16")
    everything = bench.adapters(bench.dims.catalogue, "mixed")
    batch = Batch(bench.dims.beside, bench.dims.prompt, tuple(active))
    session.keep(active)
    alone = decode_ms(bench, session, batch)
    session.keep(everything)
    crowded = decode_ms(bench, session, batch)
    return {
        "case": "idle-residents",
        "batch": batch.rows,
        "resident": len(everything),
        "active": 1,
        "rank": "16",
        "ms": median(crowded),
        "alone_ms": median(alone),
        "ratio": round(median(crowded) / median(alone), 4),
        "repeats_ms": rounded(crowded),
        "caps": plan.caps(),
    }
