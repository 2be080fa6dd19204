"""Attention over a paged cache: the op as layers/ and runner/ call it, in the form that the device wants.

A step's contexts are either gathered (GatheredContexts, the reference's) or listed as work for fixed kernels
(ListedWork), once for all layers.
"""

import torch

from lorafleet_engine.kernels.attention import reference
from lorafleet_engine.kernels.attention.contexts import CacheLayout, StepContexts
from lorafleet_engine.kernels.attention.listed import ListedWork
from lorafleet_engine.kernels.attention.reference import GatheredContexts
from lorafleet_engine.kernels.lora import LoraUpdate
from lorafleet_engine.kernels.rope import HeadNorms, Heads, NewTokens, rotate_and_store

__all__ = ["AttentionWork", "CacheLayout", "StepContexts", "attend", "attention_work", "rotate_and_attend"]

AttentionWork = GatheredContexts | ListedWork


def attention_work(contexts: StepContexts, dtype: torch.dtype) -> AttentionWork:
    """Prepare, once a step, what attend reads in every layer; `dtype` is that of query and cache."""
    if contexts.pages.is_cuda:
        from lorafleet_engine.kernels.attention import kernel

        return kernel.list_work(contexts, dtype)
    return reference.gathered(contexts, dtype)


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, work: AttentionWork) -> torch.Tensor:
    """Causal attention of a step's tokens over what the cache holds, their own keys and values included.

    query [T, heads, dim] has single tokens first, then the chunks; keys and values are [rows, kv_heads * dim], a
    layer's views of the cache. Returns [T, heads, dim].
    """
    if isinstance(work, GatheredContexts):
        return reference.attend(query, keys, values, work)
    from lorafleet_engine.kernels.attention import kernel

    return kernel.attend(query, keys, values, work)


def rotate_and_attend(
    qkv: torch.Tensor,
    heads: Heads,
    new: NewTokens,
    cache: tuple[torch.Tensor, torch.Tensor],
    work: AttentionWork,
    *,
    norms: HeadNorms | None = None,
    update: LoraUpdate | None = None,
) -> torch.Tensor:
    """rotate_and_store of qkv [T, (query + 2 kv) * dim], then attend: in one launch where that is possible."""
    if isinstance(work, ListedWork) and not work.contexts.chunks and update is None:
        from lorafleet_engine.kernels.attention import kernel

        return kernel.rotate_and_attend(qkv, new, cache, norms, work)
    query = rotate_and_store(qkv, heads, new, cache, norms, update)
    return attend(query, *cache, work)
