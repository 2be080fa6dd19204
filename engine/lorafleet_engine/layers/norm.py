"""Root-mean-square norm with its weight."""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.lora import LoraUpdate
from lorafleet_engine.kernels.rms_norm import add_rms_norm, rms_norm


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """weight [hidden]; eps as the model's config gives it."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] -> [T, hidden]."""
        return rms_norm(x, self.weight, self.eps)

    def of_sum(
        self, x: torch.Tensor, delta: torch.Tensor, update: LoraUpdate | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the stream x + delta, `update` added, and its norm, both [T, hidden]."""
        return add_rms_norm(x, delta, self.weight, self.eps, update)
