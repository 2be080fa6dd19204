"""Products with a matrix of weights, and those with the gate behind them: the ops as the model calls them."""

import torch

from lorafleet_engine.kernels.linear import reference
from lorafleet_engine.kernels.silu_mul import silu_mul

HANDFUL = 16
"""Tokens up to which a kernel of our own reads the weights: cuBLAS takes longer, some of them in two launches."""


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x [T, K] weight^T + bias: [T, N], in `out` if it is given; with that there is no bias. All is contiguous."""
    if _by_kernel(x):
        from lorafleet_engine.kernels.linear import kernel

        return kernel.linear(x, weight, bias, out)
    return reference.linear(x, weight, bias, out)


def gated_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu(x gate^T) * x up^T: [T, N]. weight [2 N, K] has the gate in its first half."""
    if _by_kernel(x):
        from lorafleet_engine.kernels.linear import kernel

        return kernel.gated_linear(x, weight)
    return silu_mul(reference.linear(x, weight, None))


def _by_kernel(x: torch.Tensor) -> bool:
    return x.is_cuda and x.shape[0] <= HANDFUL and x.dtype == torch.bfloat16
