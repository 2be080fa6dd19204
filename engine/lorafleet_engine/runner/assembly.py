"""Scheduler, memory and runner put together over one device, within one budget. Called by loop.py and bench/."""

from dataclasses import dataclass
from pathlib import Path

import torch

from lorafleet_contracts.capacity import usable_bytes
from lorafleet_engine.errors import DoesNotFitError, UnsupportedModelError
from lorafleet_engine.layers.weight import DenseWeight, MakeWeight, make_fp8
from lorafleet_engine.memory.budget import MemoryPlan, plan_engine_memory
from lorafleet_engine.memory.geometry import RESERVED_PAGES, PoolGeometry, pool_geometry
from lorafleet_engine.memory.pages import PagePool
from lorafleet_engine.memory.residency import Residency
from lorafleet_engine.messages import LoopConfig, Parity, Quantization, StepLimits
from lorafleet_engine.model.config import ModelConfig, read_config
from lorafleet_engine.model.decoder import build_decoder
from lorafleet_engine.model.weights import SafetensorsSource, WeightSource
from lorafleet_engine.runner.pool import DTYPES, DevicePool
from lorafleet_engine.runner.runner import Runner
from lorafleet_engine.scheduler.scheduler import Scheduler

DEFAULT_LIMITS = {"cpu": StepLimits(tokens=160, sequences=32), "cuda": StepLimits(tokens=2048, sequences=256)}
"""A step computes at most so much at a time: on one core 160 tokens take about 0.4 s, which is how long a prompt may
keep the other answers waiting."""
FORMS: dict[Quantization, MakeWeight] = {"none": DenseWeight, "fp8": make_fp8}
"""How projections are held."""
FP8_CAPABILITY = (8, 9)
"""The first CUDA devices that multiply numbers of 8 bits (Ada; Hopper is 9.0)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how large: `usable` bytes of `device` for everything, numbers of `dtype`, projections held as
    `quantization` says, sequences of at most `max_model_len` tokens."""

    device: torch.device
    dtype: torch.dtype
    usable: int
    max_model_len: int
    limits: StepLimits
    quantization: Quantization = "none"


@dataclass(frozen=True, slots=True)
class EngineCore:
    """What a loop drives. All of it belongs to the loop's thread. `parity` is that of a merged adapter."""

    config: ModelConfig
    placement: Placement
    geometry: PoolGeometry
    plan: MemoryPlan
    pages: PagePool
    residency: Residency
    scheduler: Scheduler
    runner: Runner
    parity: Parity | None = None


def assemble(config: ModelConfig, source: WeightSource, placement: Placement) -> EngineCore:
    """Plan the memory, then build the model and allocate the pool.

    Raises BaseDoesNotFitError or DoesNotFitError before anything is allocated, BrokenModelError from `source`.
    """
    dtype_bytes = torch.empty(0, dtype=placement.dtype).element_size()
    geometry = pool_geometry(config.shape, dtype_bytes)
    limits, length = placement.limits, placement.max_model_len
    fp8 = placement.quantization == "fp8"
    plan = plan_engine_memory(config.shape, geometry, limits, length, placement.usable, fp8=fp8)
    pages = PagePool(plan.pages, RESERVED_PAGES)
    residency = Residency(pages, plan.budget.adapters, plan.table_rows, plan.kv_floor)
    decoder = build_decoder(config, source, FORMS[placement.quantization])
    pool = DevicePool(geometry, plan.pages, plan.table_rows, placement.device, placement.dtype)
    runner = Runner(config, decoder, pool, geometry, limits, max_model_len=length)
    return EngineCore(config, placement, geometry, plan, pages, residency, Scheduler(limits, pages), runner)


def start_core(settings: LoopConfig) -> EngineCore:
    """Assemble the engine that `settings` describe. Raises EngineError or BaseDoesNotFitError with the numbers."""
    torch.set_num_threads(settings.threads)
    device, dtype = torch.device(settings.device), DTYPES[settings.dtype]
    config = read_config(Path(settings.model_dir))
    config.check_length(settings.max_model_len)
    limits = settings.limits or DEFAULT_LIMITS[settings.device]
    if settings.quantization == "fp8":
        check_fp8(device, dtype)
    usable, length = _usable(settings, device), settings.max_model_len
    placement = Placement(device, dtype, usable, length, limits, settings.quantization)
    with SafetensorsSource(Path(settings.model_dir), device, dtype) as source:
        return assemble(config, source, placement)


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


def _usable(settings: LoopConfig, device: torch.device) -> int:
    if settings.memory_bytes is not None:
        return settings.memory_bytes
    if device.type != "cuda":
        raise DoesNotFitError("LoopConfig.memory_bytes, which a CPU engine must be given", 1, 0)
    _, total = torch.cuda.mem_get_info(device)
    return usable_bytes(total, settings.utilization_percent)
