"""The gate on CUDA: one pass over gate and up, which may add their low-rank update. Called by this op only."""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.lora.expand import (
    few_updates,
    many_updates,
    precision,
    segment_arguments,
    shape_layout,
    up_columns,
)
from lorafleet_engine.kernels.lora.tiles import LoraUpdate, multiprocessors

BLOCK = 1024
WAVES = 24
"""Programs for each multiprocessor where there is an update, of one warp each..."""
UNIT_BYTES = 256
PART = 16
"""Bytes of a row that such a program takes, and rows of rank at a time."""
MANY_WAVES = 8
"""...and of those that multiply matrices."""


@triton.jit
def _silu_mul(gate_up, out, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    _gate(gate_up + row * 2 * N + column, out + row * N + column, inside, 0.0, 0.0, N)


@triton.jit
def _gate(source, target, inside, gate_update, up_update, N: tl.constexpr):
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32) + gate_update
    up = tl.load(source + N, mask=inside, other=0.0).to(tl.float32) + up_update
    tl.store(target, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


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
    FEW: tl.constexpr,
    PART: tl.constexpr,
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
        source = gate_up + at + element
        target = out + at + element
        if FEW:
            g0, g1, g2, g3, u0, u1, u2, u3 = few_updates(
                pool, gates, ups, at, at, inside, inside, values, values + SQUARE, tiles, count, hole,
                GRANULE, UNIT, PART, 2 * SQUARE,
            )  # fmt: skip
            token = tl.load(order + start).to(tl.int64)
            _gate(source + token * 2 * N, target + token * N, inside, g0, u0, N)
            if count > 1:
                token = tl.load(order + start + 1).to(tl.int64)
                _gate(source + token * 2 * N, target + token * N, inside, g1, u1, N)
            if count > 2:
                token = tl.load(order + start + 2).to(tl.int64)
                _gate(source + token * 2 * N, target + token * N, inside, g2, u2, N)
            if count > 3:
                token = tl.load(order + start + 3).to(tl.int64)
                _gate(source + token * 2 * N, target + token * N, inside, g3, u3, N)
        else:
            gate = many_updates(
                pool, gates, at, inside, values, tiles, count, hole,
                GRANULE, UNIT, TOKENS, RANKS, 2 * SQUARE, PRECISION,
            )  # fmt: skip
            up = many_updates(
                pool, ups, at, inside, values + SQUARE, tiles, count, hole,
                GRANULE, UNIT, TOKENS, RANKS, 2 * SQUARE, PRECISION,
            )  # fmt: skip
            token = tl.load(order + start + slot, mask=slot < count, other=0).to(tl.int64)[:, None]
            real = (slot < count)[:, None] & inside[None, :]
            _gate(source[None, :] + token * 2 * N, target[None, :] + token * N, real, gate, up, N)


def silu_mul(gate_up: torch.Tensor, update: LoraUpdate | None = None) -> torch.Tensor:
    """gate_up [T, 2 N] contiguous."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, width)
    if update is None:
        _silu_mul[(tokens, triton.cdiv(width, BLOCK))](gate_up, out, N=width, BLOCK=BLOCK, num_warps=4)
        return out
    rows = update.rows
    few = rows.shape.few
    unit = UNIT_BYTES // gate_up.element_size() if few else 64
    most = rows.work.segment_start.shape[0] * triton.cdiv(width, unit)
    _silu_mul_update[(min((WAVES if few else MANY_WAVES) * multiprocessors(gate_up.device), most),)](
        gate_up,
        out,
        *segment_arguments(update),
        N=width,
        UNIT=unit,
        PART=PART,
        PRECISION=precision(gate_up),
        num_warps=1 if few else 4,
        num_stages=1,
        **up_columns(rows.source.groups[update.site[1]]),
        **shape_layout(rows),
    )
    return out
