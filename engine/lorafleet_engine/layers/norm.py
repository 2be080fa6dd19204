"""Root-mean-square norm with its weight."""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.rms_norm import add_rms_norm, rms_norm
from lorafleet_engine.kernels.rope import Heads


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """weight [hidden]; eps as the model's config gives it."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] -> [T, hidden]."""
        return rms_norm(x, self.weight, self.eps)

    def of_sum(self, x: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the stream x + delta and its norm, both [T, hidden]."""
        return add_rms_norm(x, delta, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """The norms of every head of the queries and of the keys; their weights are [dim]."""

    query: RmsNorm
    key: RmsNorm

    def __call__(self, qkv: torch.Tensor, heads: Heads) -> torch.Tensor:
        """qkv [T, (query + 2 kv) * dim] -> the same with queries and keys normed; `qkv` is not changed."""
        dim, keys, values = heads.dim, heads.query * heads.dim, (heads.query + heads.kv) * heads.dim
        parts = ((self.query, qkv[:, :keys]), (self.key, qkv[:, keys:values]))
        normed = [norm(part.reshape(-1, dim)).view(part.shape) for norm, part in parts]
        return torch.cat((*normed, qkv[:, values:]), dim=-1)
