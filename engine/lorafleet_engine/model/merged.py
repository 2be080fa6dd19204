"""A base model's weights with one adapter added to them, made tensor by tensor. Used by quality/ when an engine starts
with a merged adapter; it never holds a second copy of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from lorafleet_contracts.capacity import PROJECTIONS, ModelShape
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.model.decoder import parent
from lorafleet_engine.model.weights import WeightSource

Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A [rank, in] and the scaled B transposed [rank, out]."""
LayerMatrices: TypeAlias = Mapping[str, Pair]
"""By module."""
Matrices: TypeAlias = Mapping[tuple[int, str], Pair]
"""By layer and module."""


def unpack_blob(data: torch.Tensor, module_ranks: Sequence[Sequence[int]], shape: ModelShape) -> Matrices:
    """The matrices of a packed adapter (see messages.BlobRef), as views of `data`."""
    matrices: dict[tuple[int, str], Pair] = {}
    start = 0
    for layer, ranks in enumerate(module_ranks):
        for module, rank in zip(PROJECTIONS, ranks, strict=True):
            parts = []
            for width in shape.projection(module):
                parts.append(data[start : start + rank * width].view(rank, width))
                start += rank * width
            if rank:
                matrices[layer, module] = (parts[0], parts[1])
    return matrices


def read_floats(blob: BlobRef) -> torch.Tensor:
    """A packed adapter of float32, mapped."""
    return torch.from_file(blob.path, shared=False, size=blob.bytes // 4, dtype=torch.float32)


def of_layer(matrices: Matrices, layer: int) -> LayerMatrices:
    """The matrices of one layer."""
    return {module: pair for (number, module), pair in matrices.items() if number == layer}


@dataclass(frozen=True, slots=True)
class MergedSource:
    """W + scale x B A, summed in fp32 and rounded once to `dtype`. `base` gives fp32; see WeightSource."""

    base: WeightSource
    matrices: Matrices
    dtype: torch.dtype

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See WeightSource."""
        weight = self.base.get(name, shape)
        if weight.dtype is not torch.float32:
            raise TypeError(f"{name} is {weight.dtype}: it has been rounded before the adapter was added")
        found = self.matrices.get(_place(name))
        if found is not None:
            down, up = (matrix.to(weight) for matrix in found)
            weight = torch.addmm(weight, up.t(), down)
        return weight.to(self.dtype)


def _place(name: str) -> tuple[int, str]:
    """Where a tensor belongs; of no layer if it is no projection's weight."""
    for module in PROJECTIONS:
        head, _, tail = name.partition(f".{parent(module)}.{module}.")
        if tail == "weight":
            return int(head.rpartition(".")[2]), module
    return -1, ""
