"""A group of projections with one input and their LoRA: the one place where adapters enter the model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from lorafleet_engine.kernels.lora import LoraRows, LoraUpdate, apply_lora, apply_update, begin_lora
from lorafleet_engine.layers.weight import Weight

Reduce: TypeAlias = Callable[[torch.Tensor], None]
"""Adds up a tensor over all GPUs that hold a part of the model, in place."""


@dataclass(frozen=True, slots=True)
class ProjectionGroup:
    """Projections stacked along their outputs: weight [sum(widths), K], bias or None.

    `layer` and `group` say which part of the step's LoraRows belongs to it. With `reduce` this is one GPU's share of
    the inputs: what it and its LoRA give is added up over the GPUs.
    """

    weight: Weight
    bias: torch.Tensor | None
    widths: tuple[int, ...]
    layer: int
    group: int
    reduce: Reduce | None = None

    def __call__(self, x: torch.Tensor, lora: LoraRows | None) -> tuple[torch.Tensor, LoraUpdate | None]:
        """x [T, K] -> [T, sum(widths)], and what the reader of it has still to add (see apply_lora)."""
        site = (self.layer, self.group)
        begun = None if lora is None else begin_lora(x, lora, site, self.widths)
        out, update = self.weight(x, self.bias), None
        if begun is not None:
            update = apply_lora(out, x, begun, site, self.widths)
        if self.reduce is not None:
            apply_update(out, update)
            self.reduce(out)
            return out, None
        return out, update
