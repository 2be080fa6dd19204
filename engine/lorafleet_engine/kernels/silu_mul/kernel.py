"""The gate on CUDA: one pass over gate and up, which may add their low-rank update. Called by this op only."""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.lora.expand import (
    few_updates,
    precision,
    segment_arguments,
    shape_layout,
    up_columns,
)
from lorafleet_engine.kernels.lora.tiles import LoraUpdate, multiprocessors

BLOCK = 1024
FEW_FORM = (128, 2, 16)
MANY_FORM = (64, 4, 8)
"""Where there is an update: numbers of a row that a program takes, its warps, and programs for each multiprocessor."""
MANY_STAGES = 2
"""Tiles under way where a segment has many tokens."""
LITTLE = 16
"""Tokens up to which such a segment takes a smaller product: of decodes beside prompts."""


@triton.jit
def _silu_mul(gate_up, out, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    gate = tl.load(gate_up + row * 2 * N + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * N + N + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * N + column, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


@triton.jit(do_not_specialize=["layer_column", "rows", "hole"])
def _silu_mul_update(
    gate_up,
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
    N: tl.constexpr,
    GRANULE: tl.constexpr,
    UNIT: tl.constexpr,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    PAIR: tl.constexpr,
    STAGES: tl.constexpr,
    MANY_STAGES: tl.constexpr,
    LITTLE: tl.constexpr,
    FEW: tl.constexpr,
    B0: tl.constexpr,
    B1: tl.constexpr,
    B2: tl.constexpr,
    PRECISION: tl.constexpr,
):
    BLOCKS: tl.constexpr = (N + UNIT - 1) // UNIT
    SQUARE: tl.constexpr = PAIR * RANKS
    slot = tl.arange(0, TOKENS)
    element = tl.arange(0, UNIT)
    for item in range(tl.program_id(0), tl.load(counts + 1) * BLOCKS, tl.num_programs(0)):
        segment = item // BLOCKS
        at = item % BLOCKS * UNIT
        start = tl.load(segment_start + segment)
        count = tl.load(segment_count + segment)
        tile = tl.load(segment_tile + segment)
        tiles = tl.load(segment_tiles + segment)
        place = tl.load(segment_place + segment)
        inside = at + element < N
        gates = addresses + (layer_column + B0) * rows + tile * RANKS
        ups = addresses + (layer_column + B1) * rows + tile * RANKS
        values = hidden + (place // PAIR).to(tl.int64) * 2 * SQUARE + place % PAIR * RANKS
        if FEW:
            live = slot < count
            token = tl.load(order + start + slot, mask=live, other=0).to(tl.int64)[None, :]
            column = at + element[:, None]
            real = live[None, :] & inside[:, None]
            source = gate_up + token * 2 * N + column
            gate = tl.load(source, mask=real, other=0.0)
            up = tl.load(source + N, mask=real, other=0.0)
            more, further = few_updates(
                pool, gates, ups, at, at, inside, inside, values, values + SQUARE, tiles, count, hole,
                GRANULE, UNIT, TOKENS, RANKS, 2 * SQUARE, STAGES, PRECISION,
            )  # fmt: skip
            more += gate.to(tl.float32)
            further += up.to(tl.float32)
            tl.store(out + token * N + column, more / (1.0 + tl.exp(-more)) * further, mask=real)
        elif count <= LITTLE:
            _many(
                gate_up, out, pool, gates, ups, at, inside, order + start, values, tiles, count, hole,
                N, GRANULE, UNIT, LITTLE, RANKS, SQUARE, MANY_STAGES, PRECISION,
            )  # fmt: skip
        else:
            _many(
                gate_up, out, pool, gates, ups, at, inside, order + start, values, tiles, count, hole,
                N, GRANULE, UNIT, TOKENS, RANKS, SQUARE, MANY_STAGES, PRECISION,
            )  # fmt: skip


@triton.jit
def _many(
    gate_up,
    out,
    pool,
    gates,
    ups,
    at,
    inside,
    order,
    values,
    tiles,
    count,
    hole,
    N: tl.constexpr,
    GRANULE: tl.constexpr,
    UNIT: tl.constexpr,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    SQUARE: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of outputs of a segment of up to TOKENS tokens."""
    rank = tl.arange(0, RANKS)
    slot = tl.arange(0, TOKENS)
    element = tl.arange(0, UNIT)
    live = (slot < count)[:, None]
    token = tl.load(order + slot, mask=slot < count, other=0).to(tl.int64)[:, None]
    column = at + element[None, :]
    real = live & inside[None, :]
    source = gate_up + token * 2 * N + column
    gate = tl.load(source, mask=real, other=0.0)
    up = tl.load(source + N, mask=real, other=0.0)
    here = slot[:, None] * RANKS + rank[None, :]
    more = tl.zeros((TOKENS, UNIT), tl.float32)
    further = tl.zeros((TOKENS, UNIT), tl.float32)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        row = tl.load(gates + tile * RANKS + rank)
        other = tl.load(ups + tile * RANKS + rank)
        a = tl.load(
            pool + row.to(tl.int64)[:, None] * GRANULE + column,
            mask=(row != hole)[:, None] & inside[None, :],
            other=0.0,
        )
        b = tl.load(
            pool + other.to(tl.int64)[:, None] * GRANULE + column,
            mask=(other != hole)[:, None] & inside[None, :],
            other=0.0,
        )
        left = tl.load(values + tile * 2 * SQUARE + here, mask=live, other=0.0)
        right = tl.load(values + tile * 2 * SQUARE + SQUARE + here, mask=live, other=0.0)
        more = tl.dot(left, a, more, input_precision=PRECISION)
        further = tl.dot(right, b, further, input_precision=PRECISION)
    more += gate.to(tl.float32)
    further += up.to(tl.float32)
    tl.store(out + token * N + column, more / (1.0 + tl.exp(-more)) * further, mask=real)


def silu_mul(gate_up: torch.Tensor, update: LoraUpdate | None = None) -> torch.Tensor:
    """gate_up [T, 2 N] contiguous."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, width)
    if update is None:
        _silu_mul[(tokens, triton.cdiv(width, BLOCK))](gate_up, out, N=width, BLOCK=BLOCK, num_warps=4)
        return out
    rows = update.rows
    unit, warps, waves = FEW_FORM if rows.shape.few else MANY_FORM
    most = rows.work.segment_start.shape[0] * triton.cdiv(width, unit)
    _silu_mul_update[(min(waves * multiprocessors(gate_up.device), most),)](
        gate_up,
        out,
        *segment_arguments(update),
        N=width,
        UNIT=unit,
        PRECISION=precision(gate_up),
        num_warps=warps,
        num_stages=1,
        **up_columns(rows.source.groups[update.site[1]]),
        **shape_layout(rows),
        MANY_STAGES=MANY_STAGES,
        LITTLE=LITTLE,
    )
    return out
