"""Rotary positions and the new tokens' place in the cache, in one op, as layers/ call it."""

import torch

from lorafleet_engine.kernels.rope import reference
from lorafleet_engine.kernels.rope.reference import Heads, NewTokens

__all__ = ["Heads", "NewTokens", "rotate_and_store"]


def rotate_and_store(
    qkv: torch.Tensor, heads: Heads, new: NewTokens, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Rotate queries and keys of qkv [T, (query + 2 kv) * dim], write keys and values to their cache rows.

    keys and values are [rows, kv * dim]. Returns the rotated queries [T, query, dim].
    """
    if qkv.is_cuda:
        from lorafleet_engine.kernels.rope import kernel

        return kernel.rotate_and_store(qkv, heads, new, keys, values)
    return reference.rotate_and_store(qkv, heads, new, keys, values)
