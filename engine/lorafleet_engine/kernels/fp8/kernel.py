"""Rounding to e4m3 on CUDA, one program a row, and the product by cuBLAS or CUTLASS (torch._scaled_mm)."""

import torch
import triton
import triton.language as tl

from lorafleet_engine.kernels.fp8.reference import LARGEST, LEAST_SCALE


@triton.jit
def _quantize(x, data, scales, LARGEST: tl.constexpr, LEAST: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < N
    start = row.to(tl.int64) * N
    value = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
    # The largest of fmax would drop a NaN, which has to reach the output: a sum keeps it.
    broken = tl.sum(value * 0.0, axis=0)
    scale = tl.maximum(tl.max(tl.abs(value), axis=0) / LARGEST, LEAST) + broken
    scaled = tl.minimum(tl.maximum(tl.div_rn(value, scale), -LARGEST), LARGEST)
    tl.store(data + start + column, scaled.to(data.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [R, K] contiguous."""
    rows, width = x.shape
    data = torch.empty(rows, width, device=x.device, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, 1, device=x.device, dtype=torch.float32)
    block = triton.next_power_of_2(width)
    warps = min(max(block // 512, 1), 16)
    _quantize[(rows,)](x, data, scales, LARGEST=LARGEST, LEAST=LEAST_SCALE, N=width, BLOCK=block, num_warps=warps)
    return data, scales


def scaled_linear(
    x: tuple[torch.Tensor, torch.Tensor],
    weight: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Each pair is data and scales; K and N are multiples of 16, `dtype` is bfloat16."""
    out: torch.Tensor = torch._scaled_mm(
        x[0],
        weight[0].t(),
        scale_a=x[1],
        scale_b=weight[1].t(),
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=True,
    )
    return out
