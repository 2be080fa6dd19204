"""Grouped-query self-attention with rotary positions over the paged cache."""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.attention.reference import attend_decode, attend_prefill, store
from lorafleet_engine.kernels.rope.reference import rotate
from lorafleet_engine.layers.batch import ForwardBatch
from lorafleet_engine.layers.linear import ProjectionGroup


@dataclass(frozen=True, slots=True)
class Attention:
    """q, k and v as one group, then o. heads and kv_heads count heads of `dim`."""

    qkv: ProjectionGroup
    output: ProjectionGroup
    layer: int
    heads: int
    kv_heads: int
    dim: int

    def __call__(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [T, hidden] -> [T, hidden]; stores the tokens' keys and values first."""
        tokens, rotated = x.shape[0], self.heads + self.kv_heads
        qkv = self.qkv(x, batch.lora).view(tokens, rotated + self.kv_heads, self.dim)
        query_key = rotate(qkv[:, :rotated], batch.cos, batch.sin)
        query = query_key[:, : self.heads]
        keys, values = batch.cache_of(self.layer)
        store(keys, batch.slots, query_key[:, self.heads :].reshape(tokens, -1))
        store(values, batch.slots, qkv[:, rotated:].reshape(tokens, -1))
        return self.output(self._attend(query, keys, values, batch), batch.lora)

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        parts = []
        if batch.decodes:
            parts.append(attend_decode(query[: batch.decodes], keys, values, batch.index, batch.bias))
        for segment in batch.segments:
            chunk = query[segment.start : segment.start + segment.count]
            parts.append(attend_prefill(chunk, keys, values, segment.index, segment.bias))
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined.flatten(1)
