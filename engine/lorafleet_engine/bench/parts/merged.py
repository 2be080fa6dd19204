"""What an adapter costs once it is merged into the weights: decode steps of the same engine before and after."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lorafleet_engine.bench.bench import Batch, Bench, Case, decode_ms, median, rounded
from lorafleet_engine.bench.engine import RandomSource
from lorafleet_engine.messages import MergeConfig, Parity
from lorafleet_engine.model.merged import unpack_blob
from lorafleet_engine.model.weights import WeightSource
from lorafleet_engine.quality import merging
from lorafleet_engine.quality.probes import Probes, engine_logits

BATCHES = (1, 64)
PROBES, PROBE_TOKENS = 32, 40


def cases(bench: Bench) -> Iterator[Case]:
    """One sequence, and as many as the bars name."""
    for rows in sorted({min(rows, max(bench.dims.batches)) for rows in BATCHES}):
        yield Case(f"B={rows}", lambda rows=rows: _run(bench, rows))  # type: ignore[misc]


def _run(bench: Bench, rows: int) -> dict[str, Any]:
    dims = bench.dims
    plan = bench.narrow_plan()
    session, batch = bench.session(plan), Batch(rows, dims.prompt)
    session.keep([])
    own = decode_ms(bench, session, batch)
    (blob,) = bench.adapters(1, "16")
    stored = torch.from_file(blob.ref.path, False, blob.ref.bytes // bench.dtype.itemsize, dtype=bench.dtype)
    data = stored.float()
    matrices = unpack_blob(data, blob.ref.module_ranks, bench.config.shape)
    source = Widened(RandomSource(bench.device, bench.dtype))
    probes: Probes = tuple(tuple(prompt) for prompt in bench.prompts(PROBES, PROBE_TOKENS, seed=5))
    truth = merging.reference_logits(bench.config, source, matrices, probes)
    unmerged = merging.unmerged_logits(session.core, data, MergeConfig(blob.ref), probes)
    merging.merge_weights(session.core, source, matrices)
    try:
        parity = merging.judge(engine_logits(session.core, probes, None), unmerged, truth)
        times = decode_ms(bench, session, batch)
    finally:
        merging.merge_weights(session.core, source, {})  # later cases have the base again
    return _record(rows, own, times, parity) | {"rank": blob.rank, "caps": plan.caps()}


def _record(rows: int, own: list[float], times: list[float], parity: Parity) -> dict[str, Any]:
    return {
        "case": "merged",
        "batch": rows,
        "ms": median(times),
        "own_base_ms": median(own),
        "ratio": round(median(times) / median(own), 4),
        "repeats_ms": rounded(times),
        "own_repeats_ms": rounded(own),
        "parity_rel_l2": round(parity.merged, 6),
        "unmerged_rel_l2": round(parity.unmerged, 6),
    }


@dataclass(frozen=True, slots=True)
class Widened:
    """Another source's tensors in fp32."""

    narrow: WeightSource

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See WeightSource."""
        return self.narrow.get(name, shape).float()
