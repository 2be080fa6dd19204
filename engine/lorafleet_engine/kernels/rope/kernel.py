"""Rotary positions and the store on CUDA: one program a token and head, or a segment of an adapter's tokens and head
where an update is added. The norms of heads are folded in. Called by this op only."""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.lora import LoraUpdate
from lorafleet_engine.kernels.lora.expand import few_updates, precision, segment_arguments, shape_layout, up_columns
from lorafleet_engine.kernels.lora.tiles import multiprocessors
from lorafleet_engine.kernels.rope.reference import HeadNorms, Heads, NewTokens

UPDATE_FORM = (2, 16)
"""Where there is an update: warps of a program, and programs for each multiprocessor."""


@triton.jit
def _place(
    first,
    second,
    c,
    s,
    slot,
    keys,
    values,
    query,
    query_norm,
    key_norm,
    eps,
    token,
    head,
    column,
    inside,
    real,
    QUERY: tl.constexpr,
    KV: tl.constexpr,
    DIM: tl.constexpr,
    NORM: tl.constexpr,
):
    """Put one head of a token, or of a row of tokens beside the column of its numbers, where it belongs, normed and
    rotated: its halves, updates added, the angles' cosines and sines, and the row of the cache."""
    HALF: tl.constexpr = DIM // 2
    if head < QUERY + KV:
        if NORM:
            weight = query_norm
            if head >= QUERY:
                weight = key_norm
            squares = tl.sum(first * first + second * second, axis=0, keep_dims=True)
            inverse = 1.0 / tl.sqrt_rn(squares / DIM + eps)
            first *= inverse * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
            second *= inverse * tl.load(weight + HALF + column, mask=inside, other=0.0).to(tl.float32)
        turned = first * c - second * s
        second = second * c + first * s
        first = turned
    if head < QUERY:
        target = query + (token * QUERY + head) * DIM
    elif head < QUERY + KV:
        target = keys + (slot * KV + head - QUERY) * DIM
    else:
        target = values + (slot * KV + head - QUERY - KV) * DIM
    tl.store(target + column, first, mask=real)
    tl.store(target + HALF + column, second, mask=real)


@triton.jit
def _rotate_and_store(
    qkv,
    cos,
    sin,
    slots,
    keys,
    values,
    query,
    query_norm,
    key_norm,
    angle_stride,
    eps,
    QUERY: tl.constexpr,
    KV: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < DIM // 2
    source = qkv + (token * (QUERY + 2 * KV) + head) * DIM + column
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + token * angle_stride + column, mask=inside, other=0.0)
    s = tl.load(sin + token * angle_stride + column, mask=inside, other=0.0)
    _place(
        first, second, c, s, tl.load(slots + token), keys, values, query, query_norm, key_norm, eps,
        token, head, column, inside, inside, QUERY, KV, DIM, NORM,
    )  # fmt: skip


@triton.jit(do_not_specialize=["layer_column", "rows", "hole"])
def _rotate_and_store_update(
    qkv,
    cos,
    sin,
    slots,
    keys,
    values,
    query,
    query_norm,
    key_norm,
    angle_stride,
    eps,
    pool,
    addresses,
    order,
    counts,
    segment_start,
    segment_count,
    segment_tile,
    segment_tiles,
    segment_place,
    hidden,
    layer_column,
    rows,
    hole,
    QUERY: tl.constexpr,
    KV: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    GRANULE: tl.constexpr,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    PAIR: tl.constexpr,
    STAGES: tl.constexpr,
    FEW: tl.constexpr,
    PRECISION: tl.constexpr,
    B0: tl.constexpr,
    B1: tl.constexpr,
    B2: tl.constexpr,
):
    HEADS: tl.constexpr = QUERY + 2 * KV
    HALF: tl.constexpr = DIM // 2
    SQUARE: tl.constexpr = PAIR * RANKS
    element = tl.arange(0, BLOCK)
    inside = element < HALF
    column = element[:, None]
    slot = tl.arange(0, TOKENS)
    for item in range(tl.program_id(0), tl.load(counts + 1) * HEADS, tl.num_programs(0)):
        segment = item // HEADS
        head = item % HEADS
        start = tl.load(segment_start + segment)
        count = tl.load(segment_count + segment)
        tile = tl.load(segment_tile + segment)
        tiles = tl.load(segment_tiles + segment)
        place = tl.load(segment_place + segment)
        projection = (head >= QUERY).to(tl.int32) + (head >= QUERY + KV).to(tl.int32)
        at = (head - tl.where(projection == 0, 0, tl.where(projection == 1, QUERY, QUERY + KV))) * DIM
        own = addresses + (layer_column + tl.where(projection == 0, B0, tl.where(projection == 1, B1, B2))) * rows
        own += tile * RANKS
        hid = hidden + (place // PAIR * 3 + projection).to(tl.int64) * SQUARE + place % PAIR * RANKS
        live = slot < count
        token = tl.load(order + start + slot, mask=live, other=0).to(tl.int64)[None, :]
        real = live[None, :] & inside[:, None]
        # All that the sums wait for is asked for before them.
        source = qkv + (token * HEADS + head) * DIM + column
        first = tl.load(source, mask=real, other=0.0).to(tl.float32)
        second = tl.load(source + HALF, mask=real, other=0.0).to(tl.float32)
        c = tl.load(cos + token * angle_stride + column, mask=real, other=0.0)
        s = tl.load(sin + token * angle_stride + column, mask=real, other=0.0)
        row = tl.load(slots + token, mask=live[None, :], other=0)
        one, two = few_updates(
            pool, own, own, at, at + HALF, inside, inside, hid, hid, tiles, count, hole,
            GRANULE, BLOCK, TOKENS, RANKS, 3 * SQUARE, STAGES, PRECISION,
        )  # fmt: skip
        first += one
        second += two
        _place(
            first, second, c, s, row, keys, values, query, query_norm, key_norm, eps,
            token, head, column, inside[:, None], real, QUERY, KV, DIM, NORM,
        )  # fmt: skip


def rotate_and_store(
    qkv: torch.Tensor,
    heads: Heads,
    new: NewTokens,
    cache: tuple[torch.Tensor, torch.Tensor],
    norms: HeadNorms | None = None,
    update: LoraUpdate | None = None,
) -> torch.Tensor:
    """qkv and the cache are contiguous, cos and sin contiguous in their last dimension; segments of `update` are few
    tokens long."""
    tokens = qkv.shape[0]
    query = qkv.new_empty(tokens, heads.query, heads.dim)
    query_norm, key_norm = (qkv, qkv) if norms is None else (norms.query, norms.key)
    eps = 0.0 if norms is None else norms.eps
    arguments = (qkv, new.cos, new.sin, new.slots, *cache, query, query_norm, key_norm, new.cos.stride(0), eps)
    layout = {
        "QUERY": heads.query,
        "KV": heads.kv,
        "DIM": heads.dim,
        "BLOCK": triton.next_power_of_2(heads.dim // 2),
        "NORM": norms is not None,
    }
    count = heads.query + 2 * heads.kv
    if update is None:
        _rotate_and_store[(tokens, count)](*arguments, **layout, num_warps=1)
        return query
    rows = update.rows
    most = rows.work.segment_start.shape[0] * count
    warps, waves = UPDATE_FORM
    _rotate_and_store_update[(min(waves * multiprocessors(qkv.device), most),)](
        *arguments,
        *segment_arguments(update),
        PRECISION=precision(qkv),
        num_warps=warps,
        num_stages=1,
        **layout,
        **up_columns(rows.source.groups[update.site[1]]),
        **shape_layout(rows),
    )
    return query
