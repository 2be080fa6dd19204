"""Rotary position embedding (Su et al., 2021), halves rotated as Llama and Qwen2 publish it, and the cache's store."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Heads:
    """How a row of q, k and v is cut: `query` heads, then `kv` heads of keys, then `kv` of values, each of `dim`."""

    query: int
    kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Where a step's tokens go: slots [T] int64 are their cache rows, cos and sin fp32 [T, 1, dim / 2] their angles."""

    slots: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights [dim] of the root-mean-square norms of every head of the queries and of the keys, before rotation."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate every head of x [T, heads, dim] by its token's angles; cos and sin are fp32 [T, 1, dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rotate_and_store(
    qkv: torch.Tensor,
    heads: Heads,
    new: NewTokens,
    cache: tuple[torch.Tensor, torch.Tensor],
    norms: HeadNorms | None = None,
) -> torch.Tensor:
    """See the op."""
    tokens, rotated = qkv.shape[0], heads.query + heads.kv
    keys, values = cache
    cut = qkv.view(tokens, rotated + heads.kv, heads.dim)
    query_key = cut[:, :rotated]
    if norms is not None:
        query = F.rms_norm(query_key[:, : heads.query], norms.query.shape, norms.query, norms.eps)
        key = F.rms_norm(query_key[:, heads.query :], norms.key.shape, norms.key, norms.eps)
        query_key = torch.cat((query, key), dim=1)
    query_key = rotate(query_key, new.cos, new.sin)
    keys.index_copy_(0, new.slots, query_key[:, heads.query :].reshape(tokens, -1))
    values.index_copy_(0, new.slots, cut[:, rotated:].reshape(tokens, -1))
    return query_key[:, : heads.query]
