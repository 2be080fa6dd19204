"""Grouped-query self-attention with rotary positions over the paged cache."""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.attention import attend
from lorafleet_engine.kernels.rope import Heads, rotate_and_store
from lorafleet_engine.layers.batch import ForwardBatch
from lorafleet_engine.layers.linear import ProjectionGroup
from lorafleet_engine.layers.norm import HeadNorms


@dataclass(frozen=True, slots=True)
class Attention:
    """q, k and v as one group, then o; `norms` of the heads of q and k, or None."""

    qkv: ProjectionGroup
    output: ProjectionGroup
    layer: int
    heads: Heads
    norms: HeadNorms | None

    def __call__(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [T, hidden] -> [T, hidden]; stores the tokens' keys and values first."""
        keys, values = batch.cache_of(self.layer)
        qkv = self.qkv(x, batch.lora)
        if self.norms is not None:
            qkv = self.norms(qkv, self.heads)
        query = rotate_and_store(qkv, self.heads, batch.new, keys, values)
        attended = attend(query, keys, values, batch.attention)
        return self.output(attended.flatten(1), batch.lora)
