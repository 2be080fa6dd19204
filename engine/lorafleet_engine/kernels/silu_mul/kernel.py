"""The gate on CUDA: one pass over gate and up. Called by this op only."""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _silu_mul(gate_up, out, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    gate = tl.load(gate_up + row * 2 * N + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * N + N + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * N + column, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 N] contiguous."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    _silu_mul[(rows, triton.cdiv(width, BLOCK))](gate_up, out, N=width, BLOCK=BLOCK, num_warps=4)
    return out
