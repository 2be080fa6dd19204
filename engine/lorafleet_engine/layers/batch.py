"""What one forward pass works on: device tensors only, made by the runner, read by every layer.

Tokens are ordered: first `decodes` single tokens of as many sequences, then the chunks of `segments` one after another.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LoraBatch:
    """The step's adapters. index[group] is [layers, n] granule numbers in the order kernels/lora wants; mask [T, R]."""

    pool: torch.Tensor
    index: tuple[torch.Tensor, ...]
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """A chunk of one prompt: tokens [start, start + count) of the batch; index [C], bias [count, C]."""

    start: int
    count: int
    index: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's inputs.

    tokens, positions, slots [T]; cos and sin [T, 1, dim / 2]; index and bias describe the decodes' contexts
    ([D, C], [D, 1, 1, C]); samples [S] are the rows whose logits are wanted; cache [rows, kv_heads * dim] is the pool
    seen as rows of the KV cache, `layer_rows` the distance between two layers in it (K rows, then V rows).
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    decodes: int
    index: torch.Tensor
    bias: torch.Tensor
    segments: tuple[Segment, ...]
    samples: torch.Tensor
    cache: torch.Tensor
    layer_rows: int
    lora: LoraBatch | None

    def cache_of(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's views (keys, values) of the cache: the same row number means the same token in each."""
        start, half = layer * self.layer_rows, self.layer_rows // 2
        rows = self.cache.shape[0]
        return self.cache.narrow(0, start, rows - start), self.cache.narrow(0, start + half, rows - start - half)
