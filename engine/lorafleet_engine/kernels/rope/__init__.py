"""Rotary positions and the new tokens' place in the cache, in one op, as layers/ call it."""

import torch

from lorafleet_engine.kernels.lora import LoraUpdate, apply_update
from lorafleet_engine.kernels.rope import reference
from lorafleet_engine.kernels.rope.reference import HeadNorms, Heads, NewTokens

__all__ = ["HeadNorms", "Heads", "NewTokens", "rotate_and_store"]


def rotate_and_store(
    qkv: torch.Tensor,
    heads: Heads,
    new: NewTokens,
    cache: tuple[torch.Tensor, torch.Tensor],
    norms: HeadNorms | None = None,
    update: LoraUpdate | None = None,
) -> torch.Tensor:
    """Norm (if the model does) and rotate queries and keys of qkv [T, (query + 2 kv) * dim], `update` added, and write
    keys and values to their rows of cache = (keys, values), both [rows, kv * dim].

    Returns the rotated queries [T, query, dim].
    """
    if not qkv.is_cuda and update is None:
        return reference.rotate_and_store(qkv, heads, new, cache, norms)
    from lorafleet_engine.kernels.rope import kernel

    if update is not None and not update.rows.shape.few:
        apply_update(qkv, update)
        update = None
    return kernel.rotate_and_store(qkv, heads, new, cache, norms, update)
