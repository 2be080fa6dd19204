"""Grouped-query self-attention with rotary positions over the paged cache."""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.attention import attend_decode, attend_prefill
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
        return self.output(self._attend(query, keys, values, batch), batch.lora)

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        parts = []
        if batch.decodes:
            parts.append(attend_decode(query[: batch.decodes], keys, values, batch.contexts))
        for segment in batch.segments:
            chunk = query[segment.start : segment.start + segment.count]
            parts.append(attend_prefill(chunk, keys, values, segment.index, segment.bias))
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined.flatten(1)
