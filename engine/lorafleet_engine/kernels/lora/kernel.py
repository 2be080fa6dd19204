"""Low-rank updates on CUDA at true rank, in two launches on fixed grids: shrink (x A^T), then expand (+= hidden B).

Programs walk the step's lists, so a launch does as much as the step has and one graph serves any adapters. A shrink
program multiplies one unit of the input with one tile; the last of a pair's programs to arrive sums their partials, in
the order of the input, whatever the order of arrival: results are deterministic. Called by this op only.
"""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.lora.tiles import (
    FEW_TOKENS,
    GroupColumns,
    TiledRows,
    shrink_splits,
    shrink_unit,
    tile_unit,
)

WAVES = 8
"""Programs of a launch for each multiprocessor, of the kernels that multiply matrices..."""
FEW_WAVES = 24
"""...and of the one that does not, whose programs are one warp each."""
NARROW = 8192
"""Outputs up to this width are given out in shorter runs, to have enough of them."""


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
    UNIT: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PROJECTIONS: tl.constexpr,
    A0: tl.constexpr,
    A1: tl.constexpr,
    A2: tl.constexpr,
    PRECISION: tl.constexpr,
):
    RUN: tl.constexpr = (DEPTH // UNIT + SPLITS - 1) // SPLITS
    items = tl.load(counts) * (PROJECTIONS * SPLITS)
    rank = tl.arange(0, 16)
    slot = tl.arange(0, 16)
    element = tl.arange(0, UNIT)
    square = slot[:, None] * 16 + rank[None, :]
    SQUARE: tl.constexpr = TOKENS * 16
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        place = item // SPLITS
        split = item % SPLITS
        pair = place // PROJECTIONS
        projection = place % PROJECTIONS
        tile = tl.load(pair_tile + pair)
        start = tl.load(pair_start + pair)
        count = tl.load(pair_count + pair)
        token = tl.load(order + start + slot, mask=slot < count, other=0).to(tl.int64)
        column = layer_column + tl.where(projection == 0, A0, tl.where(projection == 1, A1, A2))
        row = tl.load(addresses + column * rows + tile * 16 + rank)
        source_a = pool + row.to(tl.int64)[:, None] * GRANULE + element[None, :]
        source = x + token[:, None] * DEPTH + element[None, :]
        product = tl.zeros((16, 16), tl.float32)
        for unit in tl.range(split * RUN, tl.minimum(split * RUN + RUN, DEPTH // UNIT), num_stages=STAGES):
            a = tl.load(source_a + unit * UNIT, mask=(row != hole)[:, None], other=0.0)
            tokens = tl.load(source + unit * UNIT, mask=(slot < count)[:, None], other=0.0)
            product = tl.dot(tokens, tl.trans(a), product, input_precision=PRECISION)
        real = (slot < count)[:, None] & (rank < 16)[None, :]
        own = partial + place.to(tl.int64) * SPLITS * SQUARE + square
        tl.store(own + split * SQUARE, product, mask=real)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + place, 1, sem="acq_rel")
        if before == SPLITS - 1:
            total = tl.zeros((16, 16), tl.float32)
            for part in tl.static_range(SPLITS):
                total += tl.load(own + part * SQUARE, mask=real, other=0.0, cache_modifier=".cg")
            tl.store(hidden + place.to(tl.int64) * SQUARE + square, total, mask=real)
            tl.store(arrived + place, 0)


@triton.jit(do_not_specialize=["layer_column", "rows", "hole", "run"])
def _expand(
    out,
    pool,
    addresses,
    order,
    counts,
    segment_start,
    segment_count,
    segment_tile,
    segment_tiles,
    segment_pair,
    hidden,
    layer_column,
    rows,
    hole,
    run,
    WIDTH: tl.constexpr,
    GRANULE: tl.constexpr,
    UNIT: tl.constexpr,
    TOKENS: tl.constexpr,
    STAGES: tl.constexpr,
    PROJECTIONS: tl.constexpr,
    B0: tl.constexpr,
    B1: tl.constexpr,
    B2: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    PRECISION: tl.constexpr,
):
    BLOCKS: tl.constexpr = WIDTH // UNIT
    runs = tl.cdiv(BLOCKS, run)
    items = tl.load(counts + 1) * runs
    rank = tl.arange(0, 16)
    slot = tl.arange(0, 16)
    element = tl.arange(0, UNIT)
    SQUARE: tl.constexpr = TOKENS * 16
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        segment = item // runs
        first = item % runs * run
        start = tl.load(segment_start + segment)
        count = tl.load(segment_count + segment)
        tile = tl.load(segment_tile + segment)
        tiles = tl.load(segment_tiles + segment)
        pair = tl.load(segment_pair + segment)
        token = tl.load(order + start + slot, mask=slot < count, other=0).to(tl.int64)
        real = (slot < count)[:, None] & (element < UNIT)[None, :]
        total = tl.zeros((16, UNIT), tl.float32)
        steps = (tl.minimum(first + run, BLOCKS) - first) * tiles
        for step in tl.range(0, steps, num_stages=STAGES):
            number = step % tiles
            at = (first + step // tiles) * UNIT
            projection = (at >= N1).to(tl.int32) + (at >= N2).to(tl.int32)
            inner = at - tl.where(projection == 0, 0, tl.where(projection == 1, N1, N2))
            column = layer_column + tl.where(projection == 0, B0, tl.where(projection == 1, B1, B2))
            row = tl.load(addresses + column * rows + (tile + number) * 16 + rank)
            place_b = pool + row.to(tl.int64)[:, None] * GRANULE + inner + element[None, :]
            b = tl.load(place_b, mask=(row != hole)[:, None], other=0.0)
            square = hidden + ((pair + number) * PROJECTIONS + projection).to(tl.int64) * SQUARE
            h = tl.load(square + slot[:, None] * 16 + rank[None, :], mask=(slot < count)[:, None], other=0.0)
            total = tl.dot(h, b, total, input_precision=PRECISION)
            # Masks in place of a branch, which would keep b from being loaded ahead.
            last = number == tiles - 1
            place = out + token[:, None] * WIDTH + at + element[None, :]
            before = tl.load(place, mask=real & last, other=0.0)
            tl.store(place, before.to(tl.float32) + total, mask=real & last)
            total = tl.where(last, 0.0, total)


@triton.jit(do_not_specialize=["layer_column", "rows", "hole"])
def _expand_few(
    out,
    pool,
    addresses,
    order,
    counts,
    segment_start,
    segment_count,
    segment_tile,
    segment_tiles,
    segment_pair,
    hidden,
    layer_column,
    rows,
    hole,
    WIDTH: tl.constexpr,
    GRANULE: tl.constexpr,
    UNIT: tl.constexpr,
    PROJECTIONS: tl.constexpr,
    B0: tl.constexpr,
    B1: tl.constexpr,
    B2: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
):
    BLOCKS: tl.constexpr = WIDTH // UNIT
    items = tl.load(counts + 1) * BLOCKS
    rank = tl.arange(0, 16)
    element = tl.arange(0, UNIT)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        segment = item // BLOCKS
        at = item % BLOCKS * UNIT
        start = tl.load(segment_start + segment)
        count = tl.load(segment_count + segment)
        tile = tl.load(segment_tile + segment)
        tiles = tl.load(segment_tiles + segment)
        pair = tl.load(segment_pair + segment)
        projection = (at >= N1).to(tl.int32) + (at >= N2).to(tl.int32)
        inner = at - tl.where(projection == 0, 0, tl.where(projection == 1, N1, N2))
        column = layer_column + tl.where(projection == 0, B0, tl.where(projection == 1, B1, B2))
        numbers = addresses + column * rows + tile * 16 + rank
        sum0 = tl.zeros((UNIT,), tl.float32)
        sum1 = tl.zeros((UNIT,), tl.float32)
        sum2 = tl.zeros((UNIT,), tl.float32)
        sum3 = tl.zeros((UNIT,), tl.float32)
        for number in range(tiles):
            row = tl.load(numbers + number * 16)
            place_b = pool + row.to(tl.int64)[:, None] * GRANULE + inner + element[None, :]
            b = tl.load(place_b, mask=(row != hole)[:, None], other=0.0)
            wide = b.to(tl.float32)
            source = hidden + ((pair + number) * PROJECTIONS + projection).to(tl.int64) * 64 + rank
            sum0 += tl.sum(wide * tl.load(source).to(tl.float32)[:, None], axis=0)
            if count > 1:
                sum1 += tl.sum(wide * tl.load(source + 16).to(tl.float32)[:, None], axis=0)
            if count > 2:
                sum2 += tl.sum(wide * tl.load(source + 32).to(tl.float32)[:, None], axis=0)
                sum3 += tl.sum(wide * tl.load(source + 48, mask=count > 3, other=0.0).to(tl.float32)[:, None], axis=0)
        place = out + at + element
        _add(place + tl.load(order + start).to(tl.int64) * WIDTH, sum0)
        if count > 1:
            _add(place + tl.load(order + start + 1).to(tl.int64) * WIDTH, sum1)
        if count > 2:
            _add(place + tl.load(order + start + 2).to(tl.int64) * WIDTH, sum2)
        if count > 3:
            _add(place + tl.load(order + start + 3).to(tl.int64) * WIDTH, sum3)


@triton.jit
def _add(place, update):
    tl.store(place, tl.load(place).to(tl.float32) + update)


def begin_lora(x: torch.Tensor, rows: TiledRows, site: tuple[int, int]) -> None:
    """Shrink beside whatever the caller launches next. x is contiguous; site is (layer, group)."""
    side = rows.source.side
    if side is None:
        shrink(x, rows, site)
        return
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        shrink(x, rows, site)


def apply_lora(out: torch.Tensor, rows: TiledRows, site: tuple[int, int]) -> None:
    """Expand what begin_lora began. out is contiguous."""
    if rows.source.side is not None:
        torch.cuda.current_stream().wait_stream(rows.source.side)
    if rows.token_tile == FEW_TOKENS:
        expand_few(out, rows, site)
    else:
        expand(out, rows, site)


def shrink(x: torch.Tensor, rows: TiledRows, site: tuple[int, int]) -> None:
    """Fill rows.hidden with x A^T of every pair and projection of the group."""
    group, work, pool = rows.source.groups[site[1]], rows.work, rows.source.pool
    unit = shrink_unit(pool)
    count, splits = len(group.downs), shrink_splits(group.depth, unit, rows.token_tile)
    most = work.pair_tile.shape[0] * count * splits
    _shrink[(min(WAVES * _multiprocessors(x.device), most),)](
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
        *_layer(rows, site),
        DEPTH=group.depth,
        GRANULE=pool.shape[1],
        UNIT=unit,
        TOKENS=rows.token_tile,
        SPLITS=splits,
        STAGES=3,
        PROJECTIONS=count,
        A0=group.downs[0],
        A1=group.downs[min(1, count - 1)],
        A2=group.downs[-1],
        PRECISION=_precision(x),
        num_warps=2,
        num_stages=1,
    )


def expand(out: torch.Tensor, rows: TiledRows, site: tuple[int, int]) -> None:
    """Add hidden B of every segment to its tokens' rows of out, as products of matrices."""
    group, width = rows.source.groups[site[1]], out.shape[1]
    unit = min(tile_unit(rows.source.pool.shape[1]), 128)
    run = 2 if width > NARROW else 1
    most = rows.work.segment_start.shape[0] * -(-(width // unit) // run)
    _expand[(min(WAVES * _multiprocessors(out.device), most),)](
        *_expand_arguments(out, rows, site),
        run,
        UNIT=unit,
        TOKENS=rows.token_tile,
        STAGES=4,
        PRECISION=_precision(out),
        num_warps=4,
        num_stages=1,
        **_expand_layout(rows, group, width),
    )


def expand_few(out: torch.Tensor, rows: TiledRows, site: tuple[int, int]) -> None:
    """The same for segments of at most FEW_TOKENS tokens, without matrix products: B is read straight to registers."""
    group, width = rows.source.groups[site[1]], out.shape[1]
    unit = min(tile_unit(rows.source.pool.shape[1]), 256 // out.element_size())
    most = rows.work.segment_start.shape[0] * (width // unit)
    _expand_few[(min(FEW_WAVES * _multiprocessors(out.device), most),)](
        *_expand_arguments(out, rows, site),
        UNIT=unit,
        num_warps=1,
        num_stages=1,
        **_expand_layout(rows, group, width),
    )


def _expand_arguments(out: torch.Tensor, rows: TiledRows, site: tuple[int, int]) -> tuple[torch.Tensor | int, ...]:
    work = rows.work
    segments = (
        work.segment_start,
        work.segment_count,
        work.segment_tile,
        work.segment_tiles,
        work.segment_pair,
    )
    lists = (work.order, work.counts, *segments)
    return (out, rows.source.pool, rows.source.addresses, *lists, rows.hidden, *_layer(rows, site))


def _layer(rows: TiledRows, site: tuple[int, int]) -> tuple[int, int, int]:
    """Where the layer's part of the addresses begins, how long a column of them is, and what stands for no row."""
    source = rows.source
    return site[0] * source.layer_columns, source.addresses.shape[1], source.hole


def _expand_layout(rows: TiledRows, group: GroupColumns, width: int) -> dict[str, int]:
    """Where the group's projections begin in out and among the addresses."""
    count = len(group.ups)
    second = group.widths[0] if count > 1 else width
    return {
        "WIDTH": width,
        "GRANULE": rows.source.pool.shape[1],
        "PROJECTIONS": count,
        "B0": group.ups[0],
        "B1": group.ups[min(1, count - 1)],
        "B2": group.ups[-1],
        "N1": second,
        "N2": second + group.widths[1] if count > 2 else width,
    }


def _precision(x: torch.Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
