"""The first half of a low-rank update on CUDA: hidden = x A^T of every segment and tile. Called by this op only.

How many programs share one tile's input is chosen on the device from the step's work, so that one graph suits few
adapters and many. Where one program has the whole input it writes hidden itself; else the last of a tile's programs to
arrive sums their shares in the order of the input, whatever the order of arrival: results are deterministic.
"""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.lora.tiles import MOST_SPLITS, TiledRows, layer_place, multiprocessors

FEW_FORM = (256, 4, 2)
MANY_FORM = (256, 3, 4)
"""Bytes of a row that a program takes at a time, how often at once, and its warps."""


@triton.jit
def _split(units, CHUNKS: tl.constexpr, MOST: tl.constexpr):
    """Chunks of the input that one program takes, and programs a unit of work: as many as there are, once each."""
    wanted = tl.minimum(tl.maximum(tl.num_programs(0) // tl.maximum(units, 1), 1), MOST)
    run = tl.cdiv(CHUNKS, wanted)
    return run, tl.cdiv(CHUNKS, run)


@triton.jit(do_not_specialize=["layer_column", "rows", "hole"])
def _shrink(
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
                for part in tl.range(0, splits, loop_unroll_factor=4):
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
    chunk, stages, warps = FEW_FORM if rows.shape.few else MANY_FORM
    _shrink[grid](
        *arguments,
        CHUNK=chunk // x.element_size(),
        TOKENS=rows.shape.pair_tokens,
        RANKS=rows.shape.ranks,
        STAGES=stages,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=warps,
        num_stages=1,
        **layout,
    )
