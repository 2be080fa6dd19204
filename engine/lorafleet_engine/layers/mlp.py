"""The gated feed-forward layer."""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.lora import LoraRows, LoraUpdate
from lorafleet_engine.kernels.silu_mul import silu_mul
from lorafleet_engine.layers.linear import ProjectionGroup


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """gate and up as one group, then down."""

    gate_up: ProjectionGroup
    down: ProjectionGroup

    def __call__(self, x: torch.Tensor, lora: LoraRows | None) -> tuple[torch.Tensor, LoraUpdate | None]:
        """x [T, hidden] -> [T, hidden], and what is still to be added to it."""
        if lora is None:
            return self.down(self.gate_up.weight.gated(x), None)
        return self.down(silu_mul(*self.gate_up(x, lora)), lora)
