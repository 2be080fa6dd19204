"""The norm on CUDA: one program a row, the sums of the stream folded in. Called by this op only."""

import torch
import triton
import triton.language as tl


@triton.jit
def _norm(
    x,
    delta,
    update,
    weight,
    total,
    out,
    eps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    UPDATE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * N
    column = tl.arange(0, BLOCK)
    inside = column < N
    value = tl.load(x + row + column, mask=inside, other=0.0)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        # Rounded before the norm, as the stream is: the next layer adds to the rounded value.
        more = tl.load(delta + row + column, mask=inside, other=0.0)
        more = more.to(tl.float32)
        if UPDATE:
            more += tl.load(update + row + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more).to(x.dtype.element_ty)
        tl.store(total + row + column, value, mask=inside)
    wide = value.to(tl.float32)
    inverse = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, axis=0) / N + eps)
    tl.store(out + row + column, wide * inverse * scale, mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, N] contiguous."""
    out = torch.empty_like(x)
    _launch((x, x, x, weight, out, out), eps, add=False, update=False)
    return out


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float, update: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, delta and `update` (fp32) [T, N] contiguous; none is changed."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    third = delta if update is None else update
    _launch((x, delta, third, weight, total, out), eps, add=True, update=update is not None)
    return total, out


def _launch(tensors: tuple[torch.Tensor, ...], eps: float, *, add: bool, update: bool) -> None:
    rows, width = tensors[0].shape
    block = triton.next_power_of_2(width)
    warps = min(max(block // 512, 1), 8)
    _norm[(rows,)](*tensors, eps, N=width, BLOCK=block, ADD=add, UPDATE=update, num_warps=warps)
