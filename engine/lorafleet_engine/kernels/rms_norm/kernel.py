"""The norm on CUDA: one program a row, the sum of the stream and its update folded in. Called by this op only."""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.lora import LoraUpdate
from lorafleet_engine.kernels.lora.tiles import layer_place

WIDEST = 4096
"""Outputs up to which a program holds 16 rows of rank at a time; half as many beyond."""


@triton.jit
def _norm(x, delta, weight, total, out, eps, N: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * N
    column = tl.arange(0, BLOCK)
    inside = column < N
    value = tl.load(x + row + column, mask=inside, other=0.0)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        # Rounded before the norm, as the stream is: the next layer adds to the rounded value.
        more = tl.load(delta + row + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + row + column, value, mask=inside)
    wide = value.to(tl.float32)
    inverse = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, axis=0) / N + eps)
    tl.store(out + row + column, wide * inverse * scale, mask=inside)


@triton.jit(do_not_specialize=["layer_column", "rows", "hole"])
def _norm_update(
    x,
    delta,
    weight,
    total,
    out,
    pool,
    addresses,
    token_tile,
    token_tiles,
    token_place,
    hidden,
    layer_column,
    rows,
    hole,
    eps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    B0: tl.constexpr,
    GRANULE: tl.constexpr,
    RANKS: tl.constexpr,
):
    token = tl.program_id(0)
    tile = tl.load(token_tile + token)
    tiles = tl.load(token_tiles + token)
    place = tl.load(token_place + token)
    at = token.to(tl.int64) * N
    column = tl.arange(0, BLOCK)
    rank = tl.arange(0, RANKS)
    inside = column < N
    value = tl.load(x + at + column, mask=inside, other=0.0).to(tl.float32)
    more = tl.load(delta + at + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    own = addresses + (layer_column + B0) * rows + tile * 16 + rank
    values = hidden + place.to(tl.int64) * 16 + rank
    for part in range(0, tiles * 16, RANKS):
        row = tl.load(own + part)
        h = tl.load(values + part // 16 * 64 + part % 16)
        b = tl.load(
            pool + row.to(tl.int64)[:, None] * GRANULE + column[None, :],
            mask=(row != hole)[:, None] & inside[None, :],
            other=0.0,
        )
        more += tl.sum(b.to(tl.float32) * h[:, None], axis=0)
    value = (value + more).to(x.dtype.element_ty)
    tl.store(total + at + column, value, mask=inside)
    wide = value.to(tl.float32)
    inverse = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, axis=0) / N + eps)
    tl.store(out + at + column, wide * inverse * scale, mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, N] contiguous."""
    out = torch.empty_like(x)
    _launch((x, x, weight, out, out), eps, add=False)
    return out


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and delta [T, N] contiguous; neither is changed."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    _launch((x, delta, weight, total, out), eps, add=True)
    return total, out


def _launch(tensors: tuple[torch.Tensor, ...], eps: float, *, add: bool) -> None:
    rows, width = tensors[0].shape
    block = triton.next_power_of_2(width)
    warps = min(max(block // 512, 1), 8)
    _norm[(rows,)](*tensors, eps, N=width, BLOCK=block, ADD=add, num_warps=warps)


def add_update_rms_norm(
    x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float, update: LoraUpdate
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with the update of few tokens a segment added to delta: one program a token reads its adapter's whole
    B, through the cache where several tokens share it."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    rows, (layer, group) = update.rows, update.site
    source, work = rows.source, rows.work
    tokens, width = x.shape
    block = triton.next_power_of_2(width)
    _norm_update[(tokens,)](
        x,
        delta,
        weight,
        total,
        out,
        source.pool,
        source.addresses,
        work.token_tile,
        work.token_tiles,
        work.token_place,
        rows.hidden,
        *layer_place(source, layer),
        eps,
        N=width,
        BLOCK=block,
        B0=source.groups[group].ups[0],
        GRANULE=source.pool.shape[1],
        RANKS=16 if block <= WIDEST else 8,
        num_warps=min(max(block // 256, 1), 16),
        num_stages=1,
    )
    return total, out
