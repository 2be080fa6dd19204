"""What one forward pass works on: device tensors only, made by the runner, read by every layer.

Tokens are ordered: first single tokens of as many sequences, then chunks of prompts, one after another.
"""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.attention import AttentionWork
from lorafleet_engine.kernels.lora import LoraRows
from lorafleet_engine.kernels.rope import NewTokens


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's inputs.

    tokens [T]; `new` says where they stand and are stored; `attention` what they look at; samples [S] are the rows
    whose logits are wanted; cache [rows, kv_heads * dim] is the pool seen as rows of the KV cache, `layer_rows`
    the distance between two layers in it (K rows, then V rows).
    """

    tokens: torch.Tensor
    new: NewTokens
    attention: AttentionWork
    samples: torch.Tensor
    cache: torch.Tensor
    layer_rows: int
    lora: LoraRows | None

    def cache_of(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's views (keys, values) of the cache: the same row number means the same token in each."""
        start, half = layer * self.layer_rows, self.layer_rows // 2
        rows = self.cache.shape[0]
        return self.cache.narrow(0, start, rows - start), self.cache.narrow(0, start + half, rows - start - half)
