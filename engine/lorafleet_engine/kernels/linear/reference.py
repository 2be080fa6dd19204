"""Products with weights in plain torch: the CPU backend, and on CUDA cuBLAS for all but a handful of tokens."""

import torch
import torch.nn.functional as F


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x [T, K], weight [N, K], bias [N] -> [T, N], in `out` if it is given; with that there is no bias."""
    return F.linear(x, weight, bias) if out is None else torch.mm(x, weight.t(), out=out)
