"""The norm on CUDA: one program a row, the sum of the stream and its update folded in. Called by this op only."""

import torch
import triton
import triton.language as tl


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
