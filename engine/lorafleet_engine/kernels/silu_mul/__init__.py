"""The gate of a gated feed-forward layer: the op as layers/ call it."""

import torch

from lorafleet_engine.kernels.lora import LoraUpdate
from lorafleet_engine.kernels.silu_mul import reference


def silu_mul(gate_up: torch.Tensor, update: LoraUpdate | None = None) -> torch.Tensor:
    """Return silu(gate) * up of gate_up [T, 2 N], gate in the first half, `update` added to both. Shape [T, N]."""
    if gate_up.is_cuda or update is not None:
        from lorafleet_engine.kernels.silu_mul import kernel

        return kernel.silu_mul(gate_up, update)
    return reference.silu_mul(gate_up)
