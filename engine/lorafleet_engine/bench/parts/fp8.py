"""A base rounded to 8 bits against the same base in bfloat16: decode steps, and how far its logits are. An extra."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from lorafleet_engine.bench.bench import Batch, Bench, Case, decode_ms, median, rounded
from lorafleet_engine.bench.session import EnginePlan, Session
from lorafleet_engine.quality.probes import distance, engine_logits

PROBES, PROBE_TOKENS = 32, 40


def cases(bench: Bench) -> Iterator[Case]:
    """Every batch, then the logits; the unrounded engine is built once, before the first of them."""
    pair = _Pair(bench, bench.narrow_plan())
    for rows in bench.dims.batches:
        yield Case(f"B={rows}", lambda rows=rows: pair.decode(rows))  # type: ignore[misc]
    yield Case("logits", pair.logits)


class _Pair:
    """Remembers what the unrounded engine did in this very run."""

    def __init__(self, bench: Bench, plan: EnginePlan) -> None:
        self._bench = bench
        self._plan = plan
        self._own: dict[int, list[float]] = {}
        self._exact: torch.Tensor | None = None

    def decode(self, rows: int) -> dict[str, Any]:
        session = self._rounded()
        session.keep([])
        times = decode_ms(self._bench, session, Batch(rows, self._bench.dims.prompt))
        return {
            "case": "fp8",
            "batch": rows,
            "ms": median(times),
            "own_base_ms": median(self._own[rows]),
            "ratio": round(median(times) / median(self._own[rows]), 4),
            "repeats_ms": rounded(times),
            "weights_bytes": session.core.plan.budget.weights,
            "caps": self._plan.caps(),
        }

    def logits(self) -> dict[str, Any]:
        session = self._rounded()
        assert self._exact is not None
        found = distance(self._probe(session), self._exact)
        return {
            "case": "fp8-logits",
            "rank": 16,
            "rel_l2": round(found.rel_l2, 5),
            "same_argmax": round(found.same_argmax, 4),
            "positions": found.positions,
        }

    def _rounded(self) -> Session:
        """The engine on the rounded base; before it, once, what it is held against."""
        if self._exact is None:
            session, dims = self._bench.session(self._plan), self._bench.dims
            session.keep([])
            self._own = {rows: decode_ms(self._bench, session, Batch(rows, dims.prompt)) for rows in dims.batches}
            self._exact = self._probe(session)
            del session  # there is no room for two
        return self._bench.session(replace(self._plan, quantization="fp8"))

    def _probe(self, session: Session) -> torch.Tensor:
        (blob,) = self._bench.adapters(1, "16")
        session.keep([blob])
        probes = tuple(tuple(prompt) for prompt in self._bench.prompts(PROBES, PROBE_TOKENS, seed=5))
        return engine_logits(session.core, probes, session.core.residency.get(blob.key))
