"""An engine core put together without processes or files: random weights made on the device. Used by bench/smoke.py."""

import zlib
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.bench.plain import AdapterMatrices
from lorafleet_engine.bench.workload import ALPHA_PER_RANK, adapter_matrices
from lorafleet_engine.memory.budget import MemoryPlan, plan_engine_memory
from lorafleet_engine.memory.geometry import RESERVED_PAGES, PoolGeometry, pool_geometry
from lorafleet_engine.memory.pages import PagePool
from lorafleet_engine.memory.residency import Residency
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.model.config import ModelConfig
from lorafleet_engine.model.decoder import build_decoder
from lorafleet_engine.runner.pool import DevicePool
from lorafleet_engine.runner.runner import Runner
from lorafleet_engine.scheduler.scheduler import Scheduler


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


@dataclass(frozen=True, slots=True)
class BenchEngine:
    """Scheduler, memory and runner over one device pool."""

    config: ModelConfig
    source: RandomSource
    geometry: PoolGeometry
    plan: MemoryPlan
    pages: PagePool
    residency: Residency
    runner: Runner
    limits: StepLimits

    def scheduler(self) -> Scheduler:
        """A scheduler with nothing live, over the engine's pages."""
        return Scheduler(self.limits, self.pages)

    def load(self, key: str, matrices: AdapterMatrices) -> None:
        """Pack matrices on the device and make them resident under `key`."""
        layers = self.config.shape.layers
        rank = max(down.shape[0] for down, _ in matrices.values())
        ranks = [
            [matrices[layer, name][0].shape[0] if (layer, name) in matrices else 0 for name in PROJECTIONS]
            for layer in range(layers)
        ]
        places = [(layer, name) for layer in range(layers) for name in PROJECTIONS if (layer, name) in matrices]
        blob = torch.cat([part.reshape(-1) for place in places for part in matrices[place]])
        size = blob.numel() * blob.element_size()
        resident = self.residency.place(key, size, self.geometry.pages_of(size), rank)
        self.runner.pool.install(resident, blob, ranks)


def build_engine(
    config: ModelConfig, source: RandomSource, limits: StepLimits, *, max_model_len: int, usable: int
) -> BenchEngine:
    """Plan `usable` bytes, allocate them and build the model on the source's device."""
    geometry = pool_geometry(config.shape, torch.empty(0, dtype=source.dtype).element_size())
    plan = plan_engine_memory(config.shape, geometry, limits, max_model_len, usable)
    pages = PagePool(plan.pages, RESERVED_PAGES)
    residency = Residency(pages, plan.budget.adapters, plan.table_rows, plan.kv_floor)
    decoder = build_decoder(config, source)
    pool = DevicePool(geometry, plan.pages, plan.table_rows, source.device, source.dtype)
    runner = Runner(config, decoder, pool, geometry, limits, max_model_len=max_model_len)
    return BenchEngine(config, source, geometry, plan, pages, residency, runner, limits)


def random_adapters(
    config: ModelConfig, source: RandomSource, ranks: Items[int]
) -> list[dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]]:
    """The workload's adapters, all projections, in blob form: A [rank, in], scaled B transposed [rank, out]."""
    adapters = []
    for seed, rank in enumerate(ranks):
        generator = torch.Generator(device=source.device).manual_seed(seed)
        matrices = {}
        for layer in range(config.shape.layers):
            for module in PROJECTIONS:
                down, up = adapter_matrices(config.shape.projection(module), rank, generator)
                scaled = (up * ALPHA_PER_RANK).t().contiguous().to(source.dtype)
                matrices[layer, module] = (down.to(source.dtype), scaled)
        adapters.append(matrices)
    return adapters
