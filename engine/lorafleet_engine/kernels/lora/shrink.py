"""The first half of a low-rank update on CUDA: hidden = x A^T of every segment and tile. Called by this op only.

How many programs share one tile's input is chosen on the device from the step's work, so that one graph suits few
adapters and many. Where one program has the whole input it writes hidden itself; else the last of a tile's programs to
arrive sums their shares in the order of the input, whatever the order of arrival: results are deterministic.
"""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.lora.tiles import MOST_SPLITS, TiledRows, layer_place, multiprocessors

FEW_LANES = 64
FEW_WARPS = 4
"""Of a program for few tokens: vectors of 16 bytes that it reads of a row at a time, and its warps."""


@triton.jit
def _split(units, CHUNKS: tl.constexpr, MOST: tl.constexpr):
    """Chunks of the input that one program takes, and programs a unit of work: as many as there are, once each."""
    wanted = tl.minimum(tl.maximum(tl.num_programs(0) // tl.maximum(units, 1), 1), MOST)
    run = tl.cdiv(CHUNKS, wanted)
    return run, tl.cdiv(CHUNKS, run)


@triton.jit(do_not_specialize=["layer_column", "rows", "hole"])
def _shrink_few(
    x,
    pool,
    addresses,
    order,
    counts,
    pair_tile,
    pair_start,
    pair_count,
    partial,
    arrived,
    hidden,
    layer_column,
    rows,
    hole,
    DEPTH: tl.constexpr,
    GRANULE: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    MOST: tl.constexpr,
    PROJECTIONS: tl.constexpr,
    A0: tl.constexpr,
    A1: tl.constexpr,
    A2: tl.constexpr,
):
    CHUNK: tl.constexpr = LANES * VECTOR
    CHUNKS: tl.constexpr = (DEPTH + CHUNK - 1) // CHUNK
    units = tl.load(counts) * PROJECTIONS
    run, splits = _split(units, CHUNKS, MOST)
    rank = tl.arange(0, 16)
    element = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    for item in range(tl.program_id(0), units * splits, tl.num_programs(0)):
        place = item // splits
        split = item % splits
        pair = place // PROJECTIONS
        projection = place % PROJECTIONS
        tile = tl.load(pair_tile + pair)
        start = tl.load(pair_start + pair)
        count = tl.load(pair_count + pair)
        column = layer_column + tl.where(projection == 0, A0, tl.where(projection == 1, A1, A2))
        row = tl.load(addresses + column * rows + tile * 16 + rank)
        real = (row != hole)[:, None, None]
        source = pool + row.to(tl.int64)[:, None, None] * GRANULE + element[None, :, :]
        own = order + start
        x0 = x + tl.load(own).to(tl.int64) * DEPTH + element
        x1 = x + tl.load(own + 1, mask=count > 1, other=0).to(tl.int64) * DEPTH + element
        x2 = x + tl.load(own + 2, mask=count > 2, other=0).to(tl.int64) * DEPTH + element
        x3 = x + tl.load(own + 3, mask=count > 3, other=0).to(tl.int64) * DEPTH + element
        sum0 = tl.zeros((16, LANES), tl.float32)
        sum1 = tl.zeros((16, LANES), tl.float32)
        sum2 = tl.zeros((16, LANES), tl.float32)
        sum3 = tl.zeros((16, LANES), tl.float32)
        for chunk in range(split * run, tl.minimum(split * run + run, CHUNKS)):
            at = chunk * CHUNK
            inside = element < DEPTH - at
            a = tl.load(source + at, mask=real & inside[None, :, :], other=0.0)
            first = tl.load(x0 + at, mask=inside, other=0.0)
            second = tl.load(x1 + at, mask=inside & (count > 1), other=0.0)
            third = tl.load(x2 + at, mask=inside & (count > 2), other=0.0)
            fourth = tl.load(x3 + at, mask=inside & (count > 3), other=0.0)
            wide = a.to(tl.float32)
            sum0 += tl.sum(wide * first.to(tl.float32)[None, :, :], axis=2)
            if count > 1:
                sum1 += tl.sum(wide * second.to(tl.float32)[None, :, :], axis=2)
            if count > 2:
                sum2 += tl.sum(wide * third.to(tl.float32)[None, :, :], axis=2)
                sum3 += tl.sum(wide * fourth.to(tl.float32)[None, :, :], axis=2)
        target = hidden + place.to(tl.int64) * 64 + rank
        if splits > 1:
            target = partial + (place * splits + split) * 64 + rank
        tl.store(target, tl.sum(sum0, axis=1))
        if count > 1:
            tl.store(target + 16, tl.sum(sum1, axis=1))
        if count > 2:
            tl.store(target + 32, tl.sum(sum2, axis=1))
            tl.store(target + 48, tl.sum(sum3, axis=1))
        if splits > 1:
            tl.debug_barrier()
            before = tl.atomic_add(arrived + place, 1, sem="acq_rel")
            if before == splits - 1:
                part = tl.arange(0, MOST)
                value = tl.arange(0, 64)
                shares = tl.load(
                    partial + (place * splits + part)[:, None] * 64 + value[None, :],
                    mask=(part < splits)[:, None] & (value < count * 16)[None, :],
                    other=0.0,
                    cache_modifier=".cg",
                )
                total = tl.sum(shares, axis=0)
                tl.store(hidden + place.to(tl.int64) * 64 + value, total, mask=value < count * 16)
                tl.store(arrived + place, 0)


@triton.jit(do_not_specialize=["layer_column", "rows", "hole"])
def _shrink_many(
    x,
    pool,
    addresses,
    order,
    counts,
    pair_tile,
    pair_start,
    pair_count,
    partial,
    arrived,
    hidden,
    layer_column,
    rows,
    hole,
    DEPTH: tl.constexpr,
    GRANULE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    MOST: tl.constexpr,
    STAGES: tl.constexpr,
    PROJECTIONS: tl.constexpr,
    A0: tl.constexpr,
    A1: tl.constexpr,
    A2: tl.constexpr,
    PRECISION: tl.constexpr,
):
    CHUNKS: tl.constexpr = (DEPTH + CHUNK - 1) // CHUNK
    SQUARE: tl.constexpr = TOKENS * RANKS
    units = tl.load(counts) * PROJECTIONS
    run, splits = _split(units, CHUNKS, MOST)
    rank = tl.arange(0, RANKS)
    slot = tl.arange(0, TOKENS)
    element = tl.arange(0, CHUNK)
    square = slot[:, None] * RANKS + rank[None, :]
    for item in range(tl.program_id(0), units * splits, tl.num_programs(0)):
        place = item // splits
        split = item % splits
        pair = place // PROJECTIONS
        projection = place % PROJECTIONS
        tile = tl.load(pair_tile + pair)
        start = tl.load(pair_start + pair)
        count = tl.load(pair_count + pair)
        column = layer_column + tl.where(projection == 0, A0, tl.where(projection == 1, A1, A2))
        row = tl.load(addresses + column * rows + tile * RANKS + rank)
        token = tl.load(order + start + slot, mask=slot < count, other=0).to(tl.int64)
        down = pool + row.to(tl.int64)[:, None] * GRANULE + element[None, :]
        source = x + token[:, None] * DEPTH + element[None, :]
        product = tl.zeros((TOKENS, RANKS), tl.float32)
        for chunk in tl.range(split * run, tl.minimum(split * run + run, CHUNKS), num_stages=STAGES):
            at = chunk * CHUNK
            inside = (element < DEPTH - at)[None, :]
            a = tl.load(down + at, mask=(row != hole)[:, None] & inside, other=0.0)
            tokens = tl.load(source + at, mask=(slot < count)[:, None] & inside, other=0.0)
            product = tl.dot(tokens, tl.trans(a), product, input_precision=PRECISION)
        real = (slot < count)[:, None] & (rank < RANKS)[None, :]
        if splits == 1:
            tl.store(hidden + place.to(tl.int64) * SQUARE + square, product, mask=real)
        else:
            own = partial + place.to(tl.int64) * splits * SQUARE + square
            tl.store(own + split * SQUARE, product, mask=real)
            tl.debug_barrier()
            before = tl.atomic_add(arrived + place, 1, sem="acq_rel")
            if before == splits - 1:
                total = tl.zeros((TOKENS, RANKS), tl.float32)
                for part in range(splits):
                    total += tl.load(own + part * SQUARE, mask=real, other=0.0, cache_modifier=".cg")
                tl.store(hidden + place.to(tl.int64) * SQUARE + square, total, mask=real)
                tl.store(arrived + place, 0)


def shrink(x: torch.Tensor, rows: TiledRows, site: tuple[int, int]) -> None:
    """Fill rows.hidden with x A^T of every pair and projection of the group."""
    group, work, pool = rows.source.groups[site[1]], rows.work, rows.source.pool
    count = len(group.downs)
    arguments = (
        x,
        pool,
        rows.source.addresses,
        work.order,
        work.counts,
        work.pair_tile,
        work.pair_start,
        work.pair_count,
        rows.partial,
        rows.arrived,
        rows.hidden,
        *layer_place(rows.source, site[0]),
    )
    layout = {
        "DEPTH": group.depth,
        "GRANULE": pool.shape[1],
        "MOST": MOST_SPLITS,
        "PROJECTIONS": count,
        "A0": group.downs[0],
        "A1": group.downs[min(1, count - 1)],
        "A2": group.downs[-1],
    }
    grid = (min(rows.shape.shrink_waves * multiprocessors(x.device), work.pair_tile.shape[0] * count * MOST_SPLITS),)
    if rows.shape.few:
        vector = 16 // x.element_size()
        _shrink_few[grid](*arguments, LANES=FEW_LANES, VECTOR=vector, num_warps=FEW_WARPS, num_stages=1, **layout)
        return
    _shrink_many[grid](
        *arguments,
        CHUNK=128 // x.element_size() * 2,
        TOKENS=rows.shape.tokens,
        RANKS=rows.shape.ranks,
        STAGES=3,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=1,
        **layout,
    )
