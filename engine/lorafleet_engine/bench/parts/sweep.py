"""The cap on distinct adapters of a step: what a wide one costs in KV memory and brings in throughput."""

from collections.abc import Iterator
from typing import Any

from lorafleet_engine.bench.bench import Bench, Case, median, rounded
from lorafleet_engine.bench.serving import traffic


def cases(bench: Bench) -> Iterator[Case]:
    """One engine a cap, each serving the Zipf 1.0 traffic warm, once."""
    for cap in bench.dims.sweep_caps:
        yield _case(bench, cap)


def _case(bench: Bench, cap: int) -> Case:
    def run() -> dict[str, Any]:
        plan = bench.plan(cap)
        session = bench.session(plan)
        load = traffic(bench, 1.0)
        session.keep(load.distinct)
        session.run([load.requests(session)[: bench.dims.beside]])  # warms up
        seconds = [load.seconds(session)]
        return {
            "case": "sweep",
            "cap": cap,
            "zipf": 1.0,
            "kv_tokens": session.core.plan.budget.kv_tokens,
            "tok_s": load.tokens_per_second(median(seconds)),
            "wall_s": median(seconds),
            "distinct": len(load.distinct),
            "repeats_s": rounded(seconds),
            "caps": plan.caps(),
        }

    return Case(f"cap={cap}", run)
