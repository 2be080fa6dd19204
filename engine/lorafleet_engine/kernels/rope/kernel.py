"""Rotary positions and the store on CUDA: one program a token and head. Called by this op only."""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.rope.reference import Heads, NewTokens


@triton.jit
def _rotate_and_store(
    qkv,
    cos,
    sin,
    slots,
    keys,
    values,
    query,
    angle_stride,
    QUERY: tl.constexpr,
    KV: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    HALF: tl.constexpr = DIM // 2
    column = tl.arange(0, BLOCK)
    inside = column < HALF
    source = qkv + (token * (QUERY + 2 * KV) + head) * DIM
    first = tl.load(source + column, mask=inside)
    second = tl.load(source + HALF + column, mask=inside)
    slot = tl.load(slots + token)
    if head < QUERY + KV:
        c = tl.load(cos + token * angle_stride + column, mask=inside)
        s = tl.load(sin + token * angle_stride + column, mask=inside)
        wide, other = first.to(tl.float32), second.to(tl.float32)
        first = (wide * c - other * s).to(qkv.dtype.element_ty)
        second = (other * c + wide * s).to(qkv.dtype.element_ty)
    if head < QUERY:
        target = query + (token * QUERY + head) * DIM
    elif head < QUERY + KV:
        target = keys + (slot * KV + head - QUERY) * DIM
    else:
        target = values + (slot * KV + head - QUERY - KV) * DIM
    tl.store(target + column, first, mask=inside)
    tl.store(target + HALF + column, second, mask=inside)


def rotate_and_store(
    qkv: torch.Tensor, heads: Heads, new: NewTokens, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """qkv, keys and values are contiguous, cos and sin contiguous in their last dimension."""
    tokens = qkv.shape[0]
    query = qkv.new_empty(tokens, heads.query, heads.dim)
    _rotate_and_store[(tokens, heads.query + 2 * heads.kv)](
        qkv,
        new.cos,
        new.sin,
        new.slots,
        keys,
        values,
        query,
        new.cos.stride(0),
        QUERY=heads.query,
        KV=heads.kv,
        DIM=heads.dim,
        BLOCK=triton.next_power_of_2(heads.dim // 2),
        num_warps=1,
    )
    return query
