"""The second half of a low-rank update on CUDA: hidden B, for two blocks of outputs at a time.

Device functions that the consumers' kernels call (silu_mul, rope), and a kernel of its own for where nothing consumes
the output at once. One program has the outputs of one segment to itself: nothing is summed across programs.
"""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.lora.tiles import GroupColumns, LoraUpdate, TiledRows, layer_place, multiprocessors

WAVES = 16
UNIT = 128
"""Programs of a launch for each multiprocessor."""


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
    RANKS: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """The updates of up to 4 tokens, for blocks of UNIT outputs from `first_at` and `second_at` of their rows, whose
    addresses and hidden values (4 x 16 of them, STRIDE apart) begin at `first` and so on."""
    rank = tl.arange(0, RANKS)
    element = tl.arange(0, UNIT)
    a0 = tl.zeros((UNIT,), tl.float32)
    a1 = tl.zeros((UNIT,), tl.float32)
    a2 = tl.zeros((UNIT,), tl.float32)
    a3 = tl.zeros((UNIT,), tl.float32)
    b0 = tl.zeros((UNIT,), tl.float32)
    b1 = tl.zeros((UNIT,), tl.float32)
    b2 = tl.zeros((UNIT,), tl.float32)
    b3 = tl.zeros((UNIT,), tl.float32)
    for part in range(0, tiles * 16, RANKS):
        row = tl.load(first + part + rank)
        other = tl.load(second + part + rank)
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
        here = part // 16 * STRIDE + part % 16 + rank
        left = first_hidden + here
        right = second_hidden + here
        wide = a.to(tl.float32)
        more = b.to(tl.float32)
        a0 += tl.sum(wide * tl.load(left)[:, None], axis=0)
        b0 += tl.sum(more * tl.load(right)[:, None], axis=0)
        if count > 1:
            a1 += tl.sum(wide * tl.load(left + 16)[:, None], axis=0)
            b1 += tl.sum(more * tl.load(right + 16)[:, None], axis=0)
        if count > 2:
            a2 += tl.sum(wide * tl.load(left + 32)[:, None], axis=0)
            b2 += tl.sum(more * tl.load(right + 32)[:, None], axis=0)
            a3 += tl.sum(wide * tl.load(left + 48, mask=count > 3, other=0.0)[:, None], axis=0)
            b3 += tl.sum(more * tl.load(right + 48, mask=count > 3, other=0.0)[:, None], axis=0)
    return a0, a1, a2, a3, b0, b1, b2, b3


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
    """The same for one block of outputs of up to TOKENS tokens, [TOKENS, UNIT], as products of matrices."""
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
            if FEW:
                further = at + UNIT + element < width
                a0, a1, a2, a3, b0, b1, b2, b3 = few_updates(
                    pool, own, own, at, at + UNIT, inside, further, values, values, tiles, count, hole,
                    GRANULE, UNIT, 16, PROJECTIONS * SQUARE,
                )  # fmt: skip
                target = out + begin + at + element
                _add(target, order + start, WIDTH, UNIT, STORE, a0, b0, inside, further)
                if count > 1:
                    _add(target, order + start + 1, WIDTH, UNIT, STORE, a1, b1, inside, further)
                if count > 2:
                    _add(target, order + start + 2, WIDTH, UNIT, STORE, a2, b2, inside, further)
                if count > 3:
                    _add(target, order + start + 3, WIDTH, UNIT, STORE, a3, b3, inside, further)
            else:
                total = many_updates(
                    pool, own, at, inside, values, tiles, count, hole,
                    GRANULE, UNIT, TOKENS, RANKS, PROJECTIONS * SQUARE, PRECISION,
                )  # fmt: skip
                real = (slot < count)[:, None] & inside[None, :]
                token = tl.load(order + start + slot, mask=slot < count, other=0).to(tl.int64)
                target = out + token[:, None] * WIDTH + begin + at + element[None, :]
                before = tl.load(target, mask=real, other=0.0)
                tl.store(target, before.to(tl.float32) + total, mask=real)


@triton.jit
def _add(target, token, WIDTH: tl.constexpr, UNIT: tl.constexpr, STORE: tl.constexpr, first, second, inside, further):
    own = target + tl.load(token).to(tl.int64) * WIDTH
    if not STORE:
        first += tl.load(own, mask=inside, other=0.0).to(tl.float32)
        second += tl.load(own + UNIT, mask=further, other=0.0).to(tl.float32)
    tl.store(own, first, mask=inside)
    tl.store(own + UNIT, second, mask=further)


def expand(out: torch.Tensor, update: LoraUpdate) -> None:
    """Add the update to out, which is contiguous."""
    _launch(out, update, store=False)


def expand_apart(out: torch.Tensor, rows: TiledRows, site: tuple[int, int]) -> None:
    """Write a group's update to out, which is contiguous; zeros for tokens without an adapter."""
    _launch(out, LoraUpdate(rows, site), store=True)


def _launch(out: torch.Tensor, update: LoraUpdate, *, store: bool) -> None:
    rows = update.rows
    group = rows.source.groups[update.site[1]]
    unit = UNIT if rows.shape.few else 128
    most = rows.work.segment_start.shape[0] * sum(-(-width // unit) for width in group.widths)
    _expand[(min(WAVES * multiprocessors(out.device), most),)](
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
        num_warps=1 if rows.shape.few else 4,
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
        "FEW": shape.few,
    }


def precision(x: torch.Tensor) -> str:
    """How products of matrices of 32-bit numbers are done; others do not mind."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
