"""Numbers with one scale a row and their product, the reference of the op."""

import torch

LARGEST = 448.0
"""The largest number of e4m3."""
LEAST_SCALE = 1e-12
"""Keeps rows of zeros from dividing by zero."""


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return data [R, K] in e4m3 and scales [R, 1]. x [R, K]; a row with a NaN becomes NaN."""
    wide = x.float()
    scales = (wide.abs().amax(-1, keepdim=True) / LARGEST).clamp(min=LEAST_SCALE)
    return (wide * (1 / scales)).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales


def scaled_linear(
    x: tuple[torch.Tensor, torch.Tensor],
    weight: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Multiply what the 8-bit numbers stand for; each pair is data and scales."""
    out = x[0].float() @ weight[0].float().t() * x[1] * weight[1].t()
    return (out if bias is None else out + bias.float()).to(dtype)
