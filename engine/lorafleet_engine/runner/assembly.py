"""Scheduler, memory and runner put together over one device, within one budget. Called by loop.py and bench/."""

from dataclasses import dataclass
from pathlib import Path

import torch

from lorafleet_contracts.capacity import usable_bytes
from lorafleet_engine.errors import DoesNotFitError, UnsupportedModelError
from lorafleet_engine.layers.linear import Reduce
from lorafleet_engine.layers.weight import DenseWeight, MakeWeight, make_fp8
from lorafleet_engine.memory.budget import MemoryPlan, plan_engine_memory
from lorafleet_engine.memory.geometry import RESERVED_PAGES, PoolGeometry, pool_geometry
from lorafleet_engine.memory.pages import PagePool
from lorafleet_engine.memory.prefix import PrefixCache
from lorafleet_engine.memory.residency import Residency, Resident
from lorafleet_engine.messages import DEFAULT_LIMITS, LoopConfig, Parity, PrefixSharing, Quantization, StepLimits
from lorafleet_engine.model.config import ModelConfig, read_config
from lorafleet_engine.model.decoder import build_decoder, refill_layers
from lorafleet_engine.model.merged import LayerMatrices
from lorafleet_engine.model.shards import WHOLE, Shard, ShardedSource
from lorafleet_engine.model.weights import SafetensorsSource, WeightSource
from lorafleet_engine.runner.pool import DTYPES, DevicePool
from lorafleet_engine.runner.runner import Runner
from lorafleet_engine.runner.team import Team
from lorafleet_engine.scheduler.scheduler import Scheduler

FORMS: dict[Quantization, MakeWeight] = {"none": DenseWeight, "fp8": make_fp8}
"""How projections are held."""
FP8_CAPABILITY = (8, 9)
"""The first CUDA devices that multiply numbers of 8 bits (Ada; Hopper is 9.0)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how large: `usable` bytes of `device` for everything, numbers of `dtype`, projections held as
    `quantization` says, sequences of at most `max_model_len` tokens, equal beginnings shared as `prefix_cache` says."""

    device: torch.device
    dtype: torch.dtype
    usable: int
    max_model_len: int
    limits: StepLimits
    quantization: Quantization = "none"
    prefix_cache: PrefixSharing = "off"


@dataclass(frozen=True, slots=True)
class Part:
    """This process's share of a model that several hold, and how sums are taken over all of them; rank 0's has the
    `team` of the others."""

    shard: Shard = WHOLE
    add_up: Reduce | None = None
    team: Team | None = None


ALONE = Part()


@dataclass(frozen=True, slots=True)
class EngineCore:
    """What a loop drives. All of it belongs to the loop's thread. `parity` is that of a merged adapter. `config` is the
    whole model's; geometry, plan and runner are those of this process's share, as are the bytes of `residency`."""

    config: ModelConfig
    placement: Placement
    geometry: PoolGeometry
    plan: MemoryPlan
    pages: PagePool
    residency: Residency
    scheduler: Scheduler
    runner: Runner
    parity: Parity | None = None
    shard: Shard = WHOLE
    team: Team | None = None

    def matrices_of(self, resident: Resident, layer: int) -> LayerMatrices:
        """What DevicePool.matrices_of gives, of the whole model."""
        pool = self.runner.pool
        return pool.matrices_of(resident, layer) if self.team is None else self.team.matrices(pool, resident, layer)

    def close(self) -> None:
        """End the processes that share the model, if there are any."""
        if self.team is not None:
            self.runner.close()
            self.team.close()


def assemble(config: ModelConfig, source: WeightSource, placement: Placement, part: Part = ALONE) -> EngineCore:
    """Plan the memory, then build the model, or its `part`, and allocate the pool.

    Raises BaseDoesNotFitError or DoesNotFitError before anything is allocated, BrokenModelError from `source`.
    """
    own = part.shard.config(config)
    dtype_bytes = torch.empty(0, dtype=placement.dtype).element_size()
    geometry = pool_geometry(own.shape, dtype_bytes)
    limits, length = placement.limits, placement.max_model_len
    fp8 = placement.quantization == "fp8"
    cuda = placement.device.type == "cuda"
    plan = plan_engine_memory(own.shape, geometry, limits, length, placement.usable, fp8=fp8, cuda=cuda)
    pages = PagePool(plan.pages, RESERVED_PAGES)
    residency = Residency(pages, plan.budget.adapters, plan.table_rows, plan.kv_floor)
    tensors = source if part.shard.size == 1 else ShardedSource(source, part.shard)
    decoder = build_decoder(own, tensors, FORMS[placement.quantization], part.add_up)
    pool = DevicePool(geometry, plan.pages, plan.table_rows, placement.device, placement.dtype)
    runner = Runner(own, decoder, pool, geometry, limits, max_model_len=length, team=part.team)
    sharing = placement.prefix_cache
    prefix = None if sharing == "off" else PrefixCache(pages, shared=sharing == "shared")
    scheduler, whose = Scheduler(limits, pages, prefix=prefix), (part.shard, part.team)
    return EngineCore(config, placement, geometry, plan, pages, residency, scheduler, runner, None, *whose)


def start_core(settings: LoopConfig, part: Part = ALONE) -> EngineCore:
    """Assemble the engine that `settings` describe, or a part of it. Raises EngineError or BaseDoesNotFitError with the
    numbers."""
    torch.set_num_threads(max(settings.threads // part.shard.size, 1))
    device, dtype = device_of(settings, part.shard), DTYPES[settings.dtype]
    config = read_config(Path(settings.model_dir))
    config.check_length(settings.max_model_len)
    limits = settings.limits or DEFAULT_LIMITS[settings.device]
    if settings.quantization == "fp8":
        check_fp8(device, dtype)
    usable, length = _usable(settings, device, part.shard.size), settings.max_model_len
    placement = Placement(device, dtype, usable, length, limits, settings.quantization, settings.prefix_cache)
    with SafetensorsSource(Path(settings.model_dir), device, dtype) as source:
        core = assemble(config, source, placement, part)
        core.runner.prepare()
        return core


def overwrite_weights(core: EngineCore, source: WeightSource) -> None:
    """Put the projections and norms of another source of whole tensors in the place of this process's."""
    tensors = source if core.shard.size == 1 else ShardedSource(source, core.shard)
    form = FORMS[core.placement.quantization]
    refill_layers(core.runner.decoder, core.shard.config(core.config), tensors, form)


def device_of(settings: LoopConfig, shard: Shard) -> torch.device:
    """The device of a share, which is made the current one."""
    if settings.device != "cuda" or shard.size == 1:
        return torch.device(settings.device)
    device = torch.device("cuda", shard.rank)
    torch.cuda.set_device(device)
    return device


def check_fp8(device: torch.device, dtype: torch.dtype) -> None:
    """Raise UnsupportedModelError unless `device` multiplies numbers of 8 bits; a CPU emulates it, for tests."""
    if device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        name, found = torch.cuda.get_device_name(device), ".".join(map(str, capability))
        reason = f"quantization fp8 needs compute capability 8.9 or newer, {name} has {found}"
        raise UnsupportedModelError([f"{reason}; take quantization none"])
    if dtype != torch.bfloat16:
        raise UnsupportedModelError([f"quantization fp8 answers in bfloat16 on CUDA, not in {dtype}"])


def _usable(settings: LoopConfig, device: torch.device, parts: int) -> int:
    """Bytes of one of so many equal parts: all must plan the same, so the smallest device decides."""
    if settings.memory_bytes is not None:
        return settings.memory_bytes // parts
    if device.type != "cuda":
        raise DoesNotFitError("LoopConfig.memory_bytes, which a CPU engine must be given", 1, 0)
    if parts > 1:
        total = min(torch.cuda.get_device_properties(rank).total_memory for rank in range(parts))
    else:
        _, total = torch.cuda.mem_get_info(device)
    return usable_bytes(total, settings.utilization_percent)
