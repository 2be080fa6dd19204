"""Attention over a paged cache: the ops as layers/ and runner/ call them."""

import torch

from lorafleet_engine.kernels.attention import reference
from lorafleet_engine.kernels.attention.reference import CacheLayout, DecodeContexts, attend_prefill

__all__ = ["CacheLayout", "DecodeContexts", "attend_decode", "attend_prefill", "decode_contexts"]


def decode_contexts(
    tables: torch.Tensor, lengths: torch.Tensor, layout: CacheLayout, dtype: torch.dtype
) -> DecodeContexts:
    """Prepare, once a step, what attend_decode reads: tables [D, P] int32 pages, lengths [D] int32 tokens (>= 1)."""
    if tables.is_cuda:
        return DecodeContexts(tables, lengths, layout, None, None)
    return reference.decode_contexts(tables, lengths, layout, dtype)


def attend_decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, contexts: DecodeContexts
) -> torch.Tensor:
    """One query token a sequence. query [D, heads, dim], keys and values [rows, kv_heads * dim]: [D, heads, dim]."""
    if contexts.index is not None and contexts.bias is not None:
        return reference.attend_decode(query, keys, values, contexts.index, contexts.bias)
    from lorafleet_engine.kernels.attention import kernel

    return kernel.attend_decode(query, keys, values, contexts)
