"""Low-rank updates (Hu et al., 2021) of a group of projections that share their input, many adapters at once.

The step's distinct adapters are laid under one another as R rows of rank. A token may only use the rows of its own
adapter; `mask` says which. Every row is gathered from the pool by granules, so it may lie anywhere, and is read once.
A row that a projection does not have is gathered from zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """The step's adapters. index[group] is [layers, n] granule numbers in the order apply_lora wants; mask [T, R]."""

    pool: torch.Tensor
    index: tuple[torch.Tensor, ...]
    mask: torch.Tensor


def apply_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    pool: torch.Tensor,
    index: torch.Tensor,
    mask: torch.Tensor,
    widths: Sequence[int],
) -> None:
    """Add (x A^T, masked) B to out in place.

    x [T, K]; out [T, sum(widths)], one width a projection; pool [granules, G]; mask [T, R] bool. index holds the
    granules of all A rows [projections, R, K / G], then of each projection's B rows [R, width / G], flattened.
    """
    rows, depth = mask.shape[1], x.shape[1]
    gathered = pool.index_select(0, index).view(-1)
    split = len(widths) * rows * depth
    down = gathered[:split].view(len(widths) * rows, depth)
    hidden = torch.mm(x, down.t()).view(x.shape[0], len(widths), rows)
    hidden = torch.where(mask[:, None, :], hidden, 0)
    column = 0
    for number, width in enumerate(widths):
        up = gathered[split : split + rows * width].view(rows, width)
        out[:, column : column + width].addmm_(hidden[:, number], up)
        split += rows * width
        column += width
