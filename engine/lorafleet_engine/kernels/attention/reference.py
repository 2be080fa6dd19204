"""Attention over a paged cache, in plain torch: the rows of a sequence are gathered, then attended to.

The query heads that share a KV head are packed as query rows of that head, so that no key is ever repeated.
All index tensors count rows of one layer's view of the cache; rows that do not exist must point at zeros.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Pages in a layer's view of the cache: `block` tokens each, `page_rows` rows apart, and which one is zeros."""

    block: int
    page_rows: int
    zero_page: int


@dataclass(frozen=True, slots=True)
class DecodeContexts:
    """The contexts of D single tokens: pages, true lengths, and, where the reference runs, all their rows.

    index [D, C] names each sequence's cache rows, bias [D, 1, 1, C] is 0 where a row is the sequence's own and -inf
    elsewhere.
    """

    tables: torch.Tensor
    lengths: torch.Tensor
    layout: CacheLayout
    index: torch.Tensor | None
    bias: torch.Tensor | None


def decode_contexts(
    tables: torch.Tensor, lengths: torch.Tensor, layout: CacheLayout, dtype: torch.dtype
) -> DecodeContexts:
    """List the cache rows of every context, zeros past its end, with a bias that hides those."""
    block = torch.arange(layout.block, device=tables.device, dtype=torch.int32)
    rows = (tables[:, :, None] * layout.page_rows + block).flatten(1)
    inside = torch.arange(rows.shape[1], device=tables.device) < lengths[:, None]
    index = torch.where(inside, rows, layout.zero_page * layout.page_rows)
    return DecodeContexts(tables, lengths, layout, index, hiding_bias(inside, dtype)[:, None, None, :])


def hiding_bias(inside: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where `inside` and -inf elsewhere."""
    hidden = torch.full((), float("-inf"), device=inside.device, dtype=dtype)
    return torch.where(inside, torch.zeros((), device=inside.device, dtype=dtype), hidden)


def attend_decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, index: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """One query token a sequence. query [D, heads, dim], keys and values [rows, kv_heads * dim]: [D, heads, dim].

    index and bias as DecodeContexts has them.
    """
    count, heads, dim = query.shape
    kv_heads = keys.shape[1] // dim
    packed = query.reshape(count, kv_heads, heads // kv_heads, dim)
    shape = (count, index.shape[1], kv_heads, dim)
    flat = index.reshape(-1)
    key = keys.index_select(0, flat).view(shape).transpose(1, 2)
    value = values.index_select(0, flat).view(shape).transpose(1, 2)
    return F.scaled_dot_product_attention(packed, key, value, attn_mask=bias).reshape(count, heads, dim)


def attend_prefill(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, index: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """One chunk of one sequence. query [n, heads, dim], index [C] its cache rows up to the chunk's end.

    bias [n, C] is 0 where a query may look and -inf elsewhere. Returns [n, heads, dim].
    """
    count, heads, dim = query.shape
    kv_heads = keys.shape[1] // dim
    group = heads // kv_heads
    packed = query.view(count, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * count, dim)
    key = keys.index_select(0, index).view(1, -1, kv_heads, dim).transpose(1, 2)
    value = values.index_select(0, index).view(1, -1, kv_heads, dim).transpose(1, 2)
    mask = bias.repeat(group, 1)[None, None]
    out = F.scaled_dot_product_attention(packed, key, value, attn_mask=mask)
    return out.view(kv_heads, group, count, dim).permute(2, 0, 1, 3).reshape(count, heads, dim)
