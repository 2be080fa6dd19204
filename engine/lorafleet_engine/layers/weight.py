"""How the weights of a group of projections are held and multiplied. Used by linear.py, made by model/."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from lorafleet_engine.kernels.fp8 import ScaledRows, quantize_rows, scaled_linear
from lorafleet_engine.kernels.linear import gated_linear, linear
from lorafleet_engine.kernels.silu_mul import silu_mul


class Weight(Protocol):
    """A matrix [N, K] in some form."""

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [T, K] -> x weight^T + bias, [T, N] in the dtype of x."""
        ...

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, K] -> silu of the first half of the outputs, times the second: [T, N / 2]."""
        ...


MakeWeight: TypeAlias = Callable[[torch.Tensor], Weight]
"""Takes the matrix in the engine's dtype; it may be dropped afterwards."""


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """The matrix itself."""

    matrix: torch.Tensor

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """See Weight."""
        return linear(x, self.matrix, bias)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """See Weight."""
        return gated_linear(x, self.matrix)


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """Rounded to e4m3 with a scale an output; inputs are rounded alike, with a scale a token."""

    rows: ScaledRows

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """See Weight."""
        return scaled_linear(quantize_rows(x), self.rows, bias, x.dtype)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """See Weight."""
        return silu_mul(self(x, None))


def make_fp8(matrix: torch.Tensor) -> Fp8Weight:
    """Round a matrix."""
    return Fp8Weight(quantize_rows(matrix))
