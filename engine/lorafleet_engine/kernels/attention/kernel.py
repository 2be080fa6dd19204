"""Decode attention on CUDA: a context is cut into splits, each split of one KV head is a program, partials are joined.

The query heads that share a KV head are the rows of one matrix product (GQA packing), so every key is read once.
Splits follow the true lengths on the device; how many there are follows the shapes only, so that graphs can replay.
Called by this op only.
"""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.attention.reference import DecodeContexts

WAVES = 4
"""Programs wanted for each multiprocessor, as far as contexts can be cut."""
LEAST_TOKENS = 64
"""Tokens of a split at least, where there are too few programs without splitting..."""
LEAST_TOKENS_FILLED = 512
"""...and where sequences and heads alone fill the device: then joining costs more than it brings."""
MOST_SPLITS = 128


@triton.jit
def _split(
    query,
    keys,
    values,
    tables,
    lengths,
    out,
    partial,
    stats,
    pages,
    page_rows,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + sequence)
    share = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    start = split * share
    end = tl.minimum(start + share, length)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    own = (row < GROUP)[:, None] & (column < DIM)[None, :]
    first = sequence.to(tl.int64) * HEADS + head * GROUP
    place = (first + row)[:, None] * DIM + column[None, :]
    q = tl.load(query + place, mask=own, other=0.0)
    STRIDE: tl.constexpr = HEADS // GROUP * DIM
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    for at in range(start, end, BLOCK):
        token = at + tl.arange(0, BLOCK)
        inside = token < end
        page = tl.load(tables + sequence.to(tl.int64) * pages + token // PAGE, mask=inside, other=0)
        source = (page.to(tl.int64) * page_rows + token % PAGE) * STRIDE + head * DIM
        known = inside[:, None] & (column < DIM)[None, :]
        key = tl.load(keys + source[:, None] + column[None, :], mask=known, other=0.0)
        value = tl.load(values + source[:, None] + column[None, :], mask=known, other=0.0)
        score = tl.dot(q, tl.trans(key), input_precision=PRECISION) * scale
        score = tl.where(inside[None, :], score, float("-inf"))
        better = tl.maximum(best, tl.max(score, axis=1))
        kept = tl.exp2(best - better)
        chance = tl.exp2(score - better[:, None])
        weight = weight * kept + tl.sum(chance, axis=1)
        total = total * kept[:, None] + tl.dot(chance.to(value.dtype), value, input_precision=PRECISION)
        best = better
    if SPLITS == 1:
        tl.store(out + place, total / weight[:, None], mask=own)
    else:
        part = (first + row) * SPLITS + split
        tl.store(partial + part[:, None] * DIM + column[None, :], total, mask=own)
        tl.store(stats + part * 2, best, mask=row < GROUP)
        tl.store(stats + part * 2 + 1, weight, mask=row < GROUP)


@triton.jit
def _join(
    partial,
    stats,
    out,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, PADDED)
    column = tl.arange(0, WIDE)
    real = split < SPLITS
    best = tl.load(stats + (row * SPLITS + split) * 2, mask=real, other=float("-inf"))
    weight = tl.load(stats + (row * SPLITS + split) * 2 + 1, mask=real, other=0.0)
    share = tl.exp2(best - tl.max(best, axis=0))
    known = real[:, None] & (column < DIM)[None, :]
    part = tl.load(partial + (row * SPLITS + split)[:, None] * DIM + column[None, :], mask=known, other=0.0)
    total = tl.sum(part * share[:, None], axis=0) / tl.sum(weight * share, axis=0)
    tl.store(out + row * DIM + column, total, mask=column < DIM)


def attend_decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, contexts: DecodeContexts
) -> torch.Tensor:
    """See the op; query, keys and values are contiguous."""
    count, heads, dim = query.shape
    kv_heads = keys.shape[1] // dim
    pages = contexts.tables.shape[1]
    splits = split_count(count * kv_heads, pages * contexts.layout.block, _multiprocessors(query.device))
    out = torch.empty_like(query)
    partial, stats = out, out
    if splits > 1:
        partial = torch.empty(count * heads * splits * dim, device=query.device, dtype=torch.float32)
        stats = torch.empty(count * heads * splits * 2, device=query.device, dtype=torch.float32)
    wide, exact = triton.next_power_of_2(dim), query.dtype == torch.float32
    _split[(count, kv_heads, splits)](
        query,
        keys,
        values,
        contexts.tables,
        contexts.lengths,
        out,
        partial,
        stats,
        pages,
        contexts.layout.page_rows,
        dim**-0.5 * 1.4426950408889634,  # exp2 in place of exp
        HEADS=heads,
        GROUP=heads // kv_heads,
        ROWS=max(triton.next_power_of_2(heads // kv_heads), 16),
        DIM=dim,
        WIDE=wide,
        PAGE=contexts.layout.block,
        BLOCK=32 if exact else 64,
        SPLITS=splits,
        PRECISION="ieee" if exact else "tf32",
        num_warps=4,
        num_stages=2,
    )
    if splits > 1:
        padded = triton.next_power_of_2(splits)
        _join[(count * heads,)](
            partial, stats, out, DIM=dim, WIDE=wide, SPLITS=splits, PADDED=padded, num_warps=4 if padded > 16 else 2
        )
    return out


def split_count(programs: int, tokens: int, multiprocessors: int) -> int:
    """Splits of a context of up to `tokens`, where `programs` = sequences x KV heads run beside one another."""
    least = LEAST_TOKENS_FILLED if programs >= multiprocessors else LEAST_TOKENS
    wanted = -(-WAVES * multiprocessors // programs)
    return max(min(wanted, tokens // least, MOST_SPLITS), 1)


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
