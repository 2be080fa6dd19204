"""Attention over a paged cache, in plain torch: the rows of a sequence are gathered, then attended to.

The query heads that share a KV head are packed as query rows of that head, so that no key is ever repeated.
All index tensors count rows of one layer's view of the cache; rows that do not exist point at zeros.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lorafleet_engine.kernels.attention.contexts import StepContexts


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [start, start + count) of the query: index [C] their cache rows up to the chunk's end, bias [count, C]."""

    start: int
    count: int
    index: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class GatheredContexts:
    """A step's contexts with all their cache rows.

    index [D, C] names each single token's cache rows, bias [D, 1, 1, C] is 0 where a row is the sequence's own and -inf
    elsewhere.
    """

    decodes: int
    index: torch.Tensor
    bias: torch.Tensor
    chunks: tuple[Chunk, ...]


def gathered(contexts: StepContexts, dtype: torch.dtype) -> GatheredContexts:
    """List the cache rows of every context, zeros past its end, with a bias that hides those."""
    lengths, layout = contexts.lengths, contexts.layout
    token = torch.arange(int(lengths.max()) if contexts.decodes else 0, device=lengths.device)
    inside = token < lengths[:, None]
    if contexts.window is not None:
        inside &= token >= lengths[:, None] - contexts.window
    place = contexts.table_starts[: contexts.decodes, None] + token // layout.block
    pages = contexts.pages[place.where(inside, 0).long()].where(inside, layout.zero_page)
    index = pages * layout.page_rows + torch.where(inside, token % layout.block, 0)
    bias = _hiding(inside, dtype)[:, None, None, :]
    return GatheredContexts(contexts.decodes, index, bias, _chunks(contexts, dtype))


def _chunks(contexts: StepContexts, dtype: torch.dtype) -> tuple[Chunk, ...]:
    chunks, layout = [], contexts.layout
    row = contexts.decodes
    for number, (count, end) in enumerate(contexts.chunks):
        token = torch.arange(end, device=contexts.pages.device)
        table = contexts.pages[int(contexts.table_starts[contexts.decodes + number]) :]
        index = table[token // layout.block] * layout.page_rows + token % layout.block
        place = token[end - count :, None]
        inside = token <= place
        if contexts.window is not None:
            inside &= token > place - contexts.window
        chunks.append(Chunk(row, count, index, _hiding(inside, dtype)))
        row += count
    return tuple(chunks)


def _hiding(inside: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where `inside` and -inf elsewhere."""
    return torch.zeros(inside.shape, device=inside.device, dtype=dtype).masked_fill_(~inside, float("-inf"))


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, contexts: GatheredContexts) -> torch.Tensor:
    """See the op."""
    parts = []
    if contexts.decodes:
        single = query[: contexts.decodes]
        parts.append(attend_decode(single, keys, values, contexts.index, contexts.bias))
    for chunk in contexts.chunks:
        own = query[chunk.start : chunk.start + chunk.count]
        parts.append(attend_prefill(own, keys, values, chunk.index, chunk.bias))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, index: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """One query token a sequence. query [D, heads, dim], keys and values [rows, kv_heads * dim]: [D, heads, dim].

    index and bias as GatheredContexts has them.
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
