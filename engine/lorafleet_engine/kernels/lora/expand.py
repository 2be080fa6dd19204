"""The second half of a low-rank update on CUDA: hidden B, one block of outputs or two at a time.

Device functions that the consumers' kernels call (silu_mul, rope), and a kernel of its own for what runs beside the
projection and for where nothing consumes the output at once. One program has the outputs of one segment to itself:
nothing is summed across programs.
"""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.lora.tiles import GroupColumns, LoraUpdate, TiledRows, layer_place, multiprocessors

FEW_FORM = (64, 1, 16)
MANY_FORM = (128, 4, 16)
"""Outputs of a block, warps of a program, and programs of a launch for each multiprocessor."""
STAGES = 3
"""Of the tiles of few tokens: one is asked for while the one before is multiplied."""


@triton.jit
def few_updates(
    pool,
    first,
    second,
    first_at,
    second_at,
    first_inside,
    second_inside,
    first_hidden,
    second_hidden,
    tiles,
    count,
    hole,
    GRANULE: tl.constexpr,
    UNIT: tl.constexpr,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    STRIDE: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The updates of up to TOKENS tokens, [UNIT, TOKENS] each, for blocks of outputs from `first_at` and `second_at` of
    their rows, whose addresses and hidden values (squares of ranks beside tokens, STRIDE apart) begin at `first` and so
    on. Outputs go first because matrix units take 8 on their second side, and no fewer than 16 on their first."""
    rank = tl.arange(0, RANKS)
    slot = tl.arange(0, TOKENS)
    element = tl.arange(0, UNIT)
    live = (slot < count)[None, :]
    here = slot[None, :] * RANKS + rank[:, None]
    one = tl.zeros((UNIT, TOKENS), tl.float32)
    two = tl.zeros((UNIT, TOKENS), tl.float32)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        row = tl.load(first + tile * RANKS + rank)
        other = tl.load(second + tile * RANKS + rank)
        a = tl.load(
            pool + row.to(tl.int64)[:, None] * GRANULE + first_at + element[None, :],
            mask=(row != hole)[:, None] & first_inside[None, :],
            other=0.0,
        )
        b = tl.load(
            pool + other.to(tl.int64)[:, None] * GRANULE + second_at + element[None, :],
            mask=(other != hole)[:, None] & second_inside[None, :],
            other=0.0,
        )
        left = tl.load(first_hidden + tile * STRIDE + here, mask=live, other=0.0)
        right = tl.load(second_hidden + tile * STRIDE + here, mask=live, other=0.0)
        one = tl.dot(tl.trans(a), left, one, input_precision=PRECISION)
        two = tl.dot(tl.trans(b), right, two, input_precision=PRECISION)
    return one, two


@triton.jit
def many_updates(
    pool,
    addresses,
    at,
    inside,
    hidden,
    tiles,
    count,
    hole,
    GRANULE: tl.constexpr,
    UNIT: tl.constexpr,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The same of many tokens, [TOKENS, UNIT]."""
    rank = tl.arange(0, RANKS)
    slot = tl.arange(0, TOKENS)
    element = tl.arange(0, UNIT)
    total = tl.zeros((TOKENS, UNIT), tl.float32)
    for tile in range(tiles):
        row = tl.load(addresses + tile * RANKS + rank)
        b = tl.load(
            pool + row.to(tl.int64)[:, None] * GRANULE + at + element[None, :],
            mask=(row != hole)[:, None] & inside[None, :],
            other=0.0,
        )
        h = tl.load(
            hidden + tile * STRIDE + slot[:, None] * RANKS + rank[None, :], mask=(slot < count)[:, None], other=0.0
        )
        total = tl.dot(h, b, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["layer_column", "rows", "hole"])
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
    segment_place,
    hidden,
    layer_column,
    rows,
    hole,
    WIDTH: tl.constexpr,
    GRANULE: tl.constexpr,
    UNIT: tl.constexpr,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    PAIR: tl.constexpr,
    STAGES: tl.constexpr,
    FEW: tl.constexpr,
    PROJECTIONS: tl.constexpr,
    B0: tl.constexpr,
    B1: tl.constexpr,
    B2: tl.constexpr,
    N0: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    PRECISION: tl.constexpr,
    STORE: tl.constexpr,
):
    BLOCK: tl.constexpr = 2 * UNIT if FEW else UNIT
    FIRST: tl.constexpr = (N0 + BLOCK - 1) // BLOCK
    SECOND: tl.constexpr = FIRST + (N1 + BLOCK - 1) // BLOCK
    BLOCKS: tl.constexpr = SECOND + (N2 + BLOCK - 1) // BLOCK
    SQUARE: tl.constexpr = PAIR * RANKS
    slot = tl.arange(0, TOKENS)
    element = tl.arange(0, UNIT)
    for item in range(tl.program_id(0), tl.load(counts + 1) * BLOCKS, tl.num_programs(0)):
        segment = item // BLOCKS
        block = item % BLOCKS
        tiles = tl.load(segment_tiles + segment)
        if (tiles > 0) | STORE:
            start = tl.load(segment_start + segment)
            count = tl.load(segment_count + segment)
            tile = tl.load(segment_tile + segment)
            place = tl.load(segment_place + segment)
            projection = (block >= FIRST).to(tl.int32) + (block >= SECOND).to(tl.int32)
            at = (block - tl.where(projection == 0, 0, tl.where(projection == 1, FIRST, SECOND))) * BLOCK
            width = tl.where(projection == 0, N0, tl.where(projection == 1, N1, N2))
            begin = tl.where(projection == 0, 0, tl.where(projection == 1, N0, N0 + N1))
            column = layer_column + tl.where(projection == 0, B0, tl.where(projection == 1, B1, B2))
            own = addresses + column * rows + tile * RANKS
            square = (place // PAIR * PROJECTIONS + projection).to(tl.int64)
            values = hidden + square * SQUARE + place % PAIR * RANKS
            inside = at + element < width
            live = slot < count
            target = out + tl.load(order + start + slot, mask=live, other=0).to(tl.int64) * WIDTH + begin + at
            if FEW:
                target = target[None, :] + element[:, None]
                further = at + UNIT + element < width
                real = live[None, :] & inside[:, None]
                more = live[None, :] & further[:, None]
                if not STORE:
                    before = tl.load(target, mask=real, other=0.0).to(tl.float32)
                    after = tl.load(target + UNIT, mask=more, other=0.0).to(tl.float32)
                one, two = few_updates(
                    pool, own, own, at, at + UNIT, inside, further, values, values, tiles, count, hole,
                    GRANULE, UNIT, TOKENS, RANKS, PROJECTIONS * SQUARE, STAGES, PRECISION,
                )  # fmt: skip
                if not STORE:
                    one += before
                    two += after
                tl.store(target, one, mask=real)
                tl.store(target + UNIT, two, mask=more)
            else:
                target = target[:, None] + element[None, :]
                real = live[:, None] & inside[None, :]
                total = many_updates(
                    pool, own, at, inside, values, tiles, count, hole,
                    GRANULE, UNIT, TOKENS, RANKS, PROJECTIONS * SQUARE, PRECISION,
                )  # fmt: skip
                if not STORE:
                    total += tl.load(target, mask=real, other=0.0).to(tl.float32)
                tl.store(target, total, mask=real)


def expand(out: torch.Tensor, update: LoraUpdate) -> None:
    """Add the update to out, which is contiguous."""
    _launch(out, update, store=False)


def expand_apart(out: torch.Tensor, rows: TiledRows, site: tuple[int, int]) -> None:
    """Write a group's update to out, which is contiguous; zeros for tokens without an adapter."""
    _launch(out, LoraUpdate(rows, site), store=True)


def _launch(out: torch.Tensor, update: LoraUpdate, *, store: bool) -> None:
    rows = update.rows
    group = rows.source.groups[update.site[1]]
    unit, warps, waves = FEW_FORM if rows.shape.few else MANY_FORM
    block = 2 * unit if rows.shape.few else unit
    most = rows.work.segment_start.shape[0] * sum(-(-width // block) for width in group.widths)
    _expand[(min(waves * multiprocessors(out.device), most),)](
        out,
        *segment_arguments(update),
        WIDTH=out.shape[1],
        UNIT=unit,
        PROJECTIONS=len(group.ups),
        N0=group.widths[0],
        N1=group.widths[1] if len(group.widths) > 1 else 0,
        N2=group.widths[2] if len(group.widths) > 2 else 0,
        PRECISION=precision(rows.source.pool),
        STORE=store,
        num_warps=warps,
        num_stages=1,
        **up_columns(group),
        **shape_layout(rows),
    )


def segment_arguments(update: LoraUpdate) -> tuple[torch.Tensor | int, ...]:
    """What a kernel that walks segments takes after its own tensors, in order."""
    rows = update.rows
    work, source = rows.work, rows.source
    segments = (
        work.segment_start,
        work.segment_count,
        work.segment_tile,
        work.segment_tiles,
        work.segment_place,
    )
    lists = (work.order, work.counts, *segments)
    return (source.pool, source.addresses, *lists, rows.hidden, *layer_place(source, update.site[0]))


def up_columns(group: GroupColumns) -> dict[str, int]:
    """The columns of a group's B's, three of them whatever it has."""
    ups = group.ups
    return {"B0": ups[0], "B1": ups[min(1, len(ups) - 1)], "B2": ups[-1]}


def shape_layout(rows: TiledRows) -> dict[str, int | bool]:
    """The sizes that a step's lists were made for."""
    shape = rows.shape
    return {
        "GRANULE": rows.source.pool.shape[1],
        "TOKENS": shape.tokens,
        "RANKS": shape.ranks,
        "PAIR": shape.pair_tokens,
        "STAGES": STAGES,
        "FEW": shape.few,
    }


def precision(x: torch.Tensor) -> str:
    """How products of matrices of 32-bit numbers are done; others do not mind."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
