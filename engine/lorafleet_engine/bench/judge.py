"""Whether a step's logits are right: held against the plain model, for some rows of the step. Used by cases.py.

In fp32 the error must be tiny. In bfloat16 rounding alone leads away from the truth, by as much as the depth and the
weights make of it; the engine may be at most PARITY times as far away as the plain model computed in bfloat16 is.
"""

from dataclasses import dataclass
from typing import Any

import torch

from lorafleet_engine.bench.plain import AdapterMatrices, PlainModel
from lorafleet_engine.runner.assembly import EngineCore
from lorafleet_engine.scheduler.sequence import StepPlan

ROWS_CHECKED = 8
PARITY = 1.5
FLOAT32_BOUND = 1e-3


@dataclass(frozen=True, slots=True)
class Judge:
    """`truth` computes in fp32, `rounded` in the engine's dtype; `matrices` are those of adapters a0000, a0001..."""

    core: EngineCore
    truth: PlainModel
    rounded: PlainModel
    matrices: list[dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]]

    def check(self, plan: StepPlan) -> dict[str, Any]:
        """Run the step once more, by graph and without, and compare rows spread over the batch."""
        logits = self.core.runner.logits(plan).clone()
        same = torch.equal(logits, self.core.runner.eager_logits(plan)) if logits.is_cuda else None
        count = len(plan.works)
        rows = sorted({round(at * (count - 1) / max(ROWS_CHECKED - 1, 1)) for at in range(ROWS_CHECKED)})
        sequences = [plan.works[row].sequence for row in rows]
        tokens = [sequence.tokens for sequence in sequences]
        adapters: list[AdapterMatrices | None] = [
            None if sequence.adapter is None else self.matrices[int(sequence.adapter.key[1:])] for sequence in sequences
        ]
        truth, got = self.truth.logits(tokens, adapters), logits[rows].float()
        error, bound, rounding = relative_l2(got, truth), FLOAT32_BOUND, None
        if self.rounded.dtype != torch.float32:
            rounding = relative_l2(self.rounded.logits(tokens, adapters), truth)
            bound = PARITY * rounding
        match = (got.argmax(-1) == truth.argmax(-1)).float().mean().item()
        return {
            "rows_checked": len(rows),
            "rel_l2": round(error, 6),
            "rounding_rel_l2": rounding and round(rounding, 6),
            "argmax_match": round(match, 4),
            "graph_equals_eager": same,
            "ok": error <= bound and same is not False,
        }


def relative_l2(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """|got - wanted| / |wanted| over all elements; infinite where got is not finite."""
    error = ((got - wanted).norm() / wanted.norm()).item()
    return error if error == error else float("inf")
