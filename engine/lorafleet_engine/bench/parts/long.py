"""Decode steps at long contexts, on the base alone: milliseconds per step while the whole batch runs."""

import math
from collections.abc import Iterator
from typing import Any

from lorafleet_engine.bench.bench import Batch, Bench, Case, median
from lorafleet_engine.bench.parts.decode import Measured, decode_record
from lorafleet_engine.bench.parts.stall import chunked
from lorafleet_engine.bench.session import BenchError, Session

SLACK = 8
"""Steps more than are needed by count."""


def cases(bench: Bench) -> Iterator[Case]:
    """The long contexts, then a long prompt beside decodes: the engines with a long window."""
    for rows, context in bench.dims.long:
        yield _case(bench, rows, context)
    yield Case("chunked-prefill", lambda: chunked(bench))


def _case(bench: Bench, rows: int, prompt: int) -> Case:
    def run() -> dict[str, Any]:
        plan, batch = bench.long_plan(bench.dims.step_tokens, max(bench.dims.batches)), Batch(rows, prompt)
        session = bench.session(plan)
        session.keep([])
        times, context = _windows(bench, session, batch)
        return decode_record(bench, Measured(plan, batch, context, "none"), times, median(times))

    return Case(f"base B={rows} context={prompt}", run)


def _windows(bench: Bench, session: Session, batch: Batch) -> tuple[list[float], int]:
    """Milliseconds per step of `repeats` windows of one run, and the mean context in them.

    Prompts that take many steps do not end together, so the difference of two runs would hold steps of part of the
    batch. Here all answers last until the end, and windows begin when the last prompt has its answer begun; the first
    window is the warm-up.
    """
    dims, windows = bench.dims, 1 + bench.options.repeats
    steps = max(dims.decode_steps // 2, 1)
    first = math.ceil(batch.rows * batch.prompt / (dims.step_tokens - batch.rows))
    drawn = bench.prompts(batch.rows, batch.prompt, 2)
    requests = session.requests(drawn, batch.per_row(), first + windows * steps + SLACK)
    times = session.run([requests]).times
    begun = max(times[request.request_id][0] for request in requests)
    ticks = [at for at in times[requests[0].request_id] if at >= begun][: windows * steps + 1]
    if len(ticks) < windows * steps + 1:
        raise BenchError(f"only {len(ticks)} steps of the whole batch")
    spans = [(ticks[at + steps] - ticks[at]) / steps * 1e3 for at in range(steps, windows * steps, steps)]
    done = [sum(at < begun for at in times[request.request_id]) for request in requests]
    return spans, batch.prompt + round(sum(done) / len(done)) + (windows + 1) * steps // 2
