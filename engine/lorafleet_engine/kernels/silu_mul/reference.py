"""The gate of a gated feed-forward layer (SwiGLU, Shazeer 2020)."""

import torch
import torch.nn.functional as F


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of gate_up [T, 2 N], gate in the first half. Shape [T, N]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
