"""Root-mean-square norm, alone or of a sum: the op as layers/ call it."""

import torch

from lorafleet_engine.kernels.lora import LoraUpdate, apply_update
from lorafleet_engine.kernels.rms_norm import reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension. x [T, N], weight [N]."""
    if x.is_cuda:
        from lorafleet_engine.kernels.rms_norm import kernel

        return kernel.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float, update: LoraUpdate | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x + delta (+ its `update`), rounded to their dtype, and its norm. x and delta [T, N], weight [N]."""
    if not x.is_cuda and update is None:
        return reference.add_rms_norm(x, delta, weight, eps)
    from lorafleet_engine.kernels.rms_norm import kernel

    if update is not None and update.sums is not None:
        return kernel.add_rms_norm(x, delta, weight, eps, update.sums)
    apply_update(delta, update)
    return kernel.add_rms_norm(x, delta, weight, eps)
