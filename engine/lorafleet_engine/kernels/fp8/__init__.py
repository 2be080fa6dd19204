"""8-bit products (W8A8, e4m3): numbers with one scale a row, and the product of two of them. Called by layers/."""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.fp8 import reference

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """A matrix as data [R, K] in e4m3 times scales [R, 1] in fp32."""

    data: torch.Tensor
    scales: torch.Tensor


def quantize_rows(x: torch.Tensor) -> ScaledRows:
    """Round x [R, K], each row scaled so that its largest number becomes the largest of e4m3.

    Each number is off by at most 1/16 of itself (3 bits of mantissa), or by 2^-10 of its row's largest / 448.
    """
    if x.is_cuda:
        from lorafleet_engine.kernels.fp8 import kernel

        return ScaledRows(*kernel.quantize_rows(x))
    return ScaledRows(*reference.quantize_rows(x))


def scaled_linear(x: ScaledRows, weight: ScaledRows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x [T, K] and weight [N, K] -> x weight^T + bias, summed in fp32 and rounded once to `dtype`: [T, N]."""
    pairs = (x.data, x.scales), (weight.data, weight.scales)
    if x.data.is_cuda:
        from lorafleet_engine.kernels.fp8 import kernel

        return kernel.scaled_linear(*pairs, bias, dtype)
    return reference.scaled_linear(*pairs, bias, dtype)
