"""Root-mean-square norm, alone or of a sum: the op as layers/ call it."""

import torch

from lorafleet_engine.kernels.rms_norm import reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension. x [T, N], weight [N]."""
    if x.is_cuda:
        from lorafleet_engine.kernels.rms_norm import kernel

        return kernel.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x + delta, rounded to their dtype, and its norm. x and delta [T, N], weight [N]."""
    if x.is_cuda:
        from lorafleet_engine.kernels.rms_norm import kernel

        return kernel.add_rms_norm(x, delta, weight, eps)
    return reference.add_rms_norm(x, delta, weight, eps)
