"""Random weights and adapters made on the device, for an engine core without processes or files.

Used by bench/smoke.py and bench/catalogue.py.
"""

import zlib
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.bench.plain import AdapterMatrices
from lorafleet_engine.bench.workload import ALPHA_PER_RANK, adapter_matrices
from lorafleet_engine.model.config import ModelConfig
from lorafleet_engine.runner.assembly import EngineCore


@dataclass(frozen=True, slots=True)
class RandomSource:
    """Weights drawn by name: the same name gives the same tensor every time. See model.weights.WeightSource."""

    device: torch.device
    dtype: torch.dtype
    spread: float = 0.02

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Normal weights; norms are around one."""
        generator = torch.Generator(device=self.device).manual_seed(zlib.crc32(name.encode()))
        drawn = torch.randn(shape, generator=generator, device=self.device, dtype=self.dtype) * self.spread
        return drawn + 1 if "norm" in name else drawn


def install(core: EngineCore, key: str, matrices: AdapterMatrices) -> None:
    """Pack matrices on the device and make them resident under `key`."""
    layers = range(core.config.shape.layers)
    ranks = [
        [matrices[layer, name][0].shape[0] if (layer, name) in matrices else 0 for name in PROJECTIONS]
        for layer in layers
    ]
    blob = packed(matrices)
    size = blob.numel() * blob.element_size()
    resident = core.residency.place(key, size, core.geometry.pages_of(ranks), max(map(max, ranks)))
    core.runner.pool.install(resident, blob, ranks)


def packed(matrices: AdapterMatrices) -> torch.Tensor:
    """The matrices as one array in blob order (see messages.BlobRef)."""
    places = sorted(matrices, key=lambda place: (place[0], PROJECTIONS.index(place[1])))
    return torch.cat([part.reshape(-1) for place in places for part in matrices[place]])


def random_adapters(
    config: ModelConfig, source: RandomSource, ranks: Items[int]
) -> list[dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]]:
    """The workload's adapters, all projections, in blob form: A [rank, in], scaled B transposed [rank, out]."""
    return [random_adapter(config, source, seed, rank) for seed, rank in enumerate(ranks)]


def random_adapter(
    config: ModelConfig, source: RandomSource, seed: int, rank: int
) -> dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]:
    """One of them: its number is its seed."""
    generator = torch.Generator(device=source.device).manual_seed(seed)
    matrices = {}
    for layer in range(config.shape.layers):
        for module in PROJECTIONS:
            down, up = adapter_matrices(config.shape.projection(module), rank, generator)
            scaled = (up * ALPHA_PER_RANK).t().contiguous().to(source.dtype)
            matrices[layer, module] = (down.to(source.dtype), scaled)
    return matrices
