"""Grouped-query self-attention with rotary positions over the paged cache."""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.attention import rotate_and_attend
from lorafleet_engine.kernels.lora import LoraUpdate
from lorafleet_engine.kernels.rope import HeadNorms, Heads
from lorafleet_engine.layers.batch import ForwardBatch
from lorafleet_engine.layers.linear import ProjectionGroup


@dataclass(frozen=True, slots=True)
class Attention:
    """q, k and v as one group, then o; `norms` of the heads of q and k, or None."""

    qkv: ProjectionGroup
    output: ProjectionGroup
    layer: int
    heads: Heads
    norms: HeadNorms | None

    def __call__(self, x: torch.Tensor, batch: ForwardBatch) -> tuple[torch.Tensor, LoraUpdate | None]:
        """x [T, hidden] -> [T, hidden], and what is still to be added to it; the tokens' keys and values are stored."""
        qkv, update = self.qkv(x, batch.lora)
        cache = batch.cache_of(self.layer)
        attended = rotate_and_attend(
            qkv, self.heads, batch.new, cache, batch.attention, norms=self.norms, update=update
        )
        return self.output(attended.flatten(1), batch.lora)
