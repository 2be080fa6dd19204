"""What a planned pool runs on: memory of GPUs, shapes of published bases, and the budget of a replica that follows.

Called by the planner where manifests don't say. Bytes are integers; everything here is an assumption that the plan's
output names.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorafleet_contracts.capacity import (
    MemoryBudget,
    ModelShape,
    kv_bytes_per_token,
    mig_slice_bytes,
    plan_memory,
    shard_shape,
    usable_bytes,
    weight_bytes,
)
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_operator.core.manifests.engine import resolve_device
from lorafleet_operator.core.manifests.quantities import parse_bytes

GPU_BYTES: Mapping[str, int] = {
    "h200": 141_000_000_000,
    "h100": 80_000_000_000,
    "a100": 80_000_000_000,
    "l40s": 48_000_000_000,
    "a10": 24_000_000_000,
    "l4": 24_000_000_000,
}
"""By the vendor's data sheets; the driver keeps a little of it."""
DEFAULT_GPU = "h200"
ACTIVATION_BYTES = 4_000_000_000
"""On a GPU, as the source of docs/capacity.md assumes; engines report what it is."""
CPU_ACTIVATION_SHARE = 4
"""On a CPU one part in so many of what the container may take."""
ASSUMED_BASE = "qwen2.5-7b"

_SHAPES: Mapping[str, ModelShape] = {
    "smollm2-135m": ModelShape(30, 576, 1536, 9, 3, 64, 49152, tied_embeddings=True),
    "qwen2.5-0.5b": ModelShape(24, 896, 4864, 14, 2, 64, 151936, tied_embeddings=True, attention_bias=True),
    "qwen2.5-7b": ModelShape(28, 3584, 18944, 28, 4, 128, 152064, attention_bias=True),
    "qwen2.5-14b": ModelShape(48, 5120, 13824, 40, 8, 128, 152064, attention_bias=True),
    "qwen3-8b": ModelShape(36, 4096, 12288, 32, 8, 128, 151936, qk_norm=True),
    "llama-3.1-8b": ModelShape(32, 4096, 14336, 32, 8, 128, 128256),
    "llama-3.1-70b": ModelShape(80, 8192, 28672, 64, 8, 128, 128256),
    "mistral-7b": ModelShape(32, 4096, 14336, 32, 8, 128, 32768),
}


class HardwareError(Exception):
    """The planner can't know a replica's memory; the message says which flag tells it."""


@dataclass(frozen=True, slots=True)
class BaseShape:
    """A base's shape, and what it was taken from ("" where that is certain)."""

    shape: ModelShape
    assumption: str = ""


def find_shape(spec: LoraPoolSpec) -> BaseShape:
    """The shape of a pool's base by its names; of ASSUMED_BASE, said so, where none of them is known."""
    base = spec.base_model
    names = [base.name, *base.aliases, base.source.uri.rstrip("/").rpartition("/")[2]]
    for name in (each.lower().rpartition("/")[2].removeprefix("meta-") for each in names):
        found = max((known for known in _SHAPES if name.startswith(known)), key=len, default=None)
        if found is not None:
            return BaseShape(_SHAPES[found])
    return BaseShape(
        _SHAPES[ASSUMED_BASE], f"the shape of {base.name} is not known; {ASSUMED_BASE} is assumed (--model-config)"
    )


def read_shape(path: Path) -> BaseShape:
    """The shape in a model's config.json. Raises HardwareError with the missing field."""
    try:
        config: dict[str, Any] = json.loads(path.read_text())
        heads = int(config["num_attention_heads"])
        kind = str(config.get("model_type", ""))
        return BaseShape(
            ModelShape(
                layers=int(config["num_hidden_layers"]),
                hidden=int(config["hidden_size"]),
                intermediate=int(config["intermediate_size"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads", heads)),
                head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
                vocab=int(config["vocab_size"]),
                tied_embeddings=bool(config.get("tie_word_embeddings", False)),
                attention_bias=bool(config.get("attention_bias", kind == "qwen2")),
                qk_norm=kind == "qwen3",
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HardwareError(f"--model-config {path}: {error!r} (it must be a model's config.json)") from error


def replica_memory(spec: LoraPoolSpec, shape: ModelShape, gpu: str | None) -> MemoryBudget:
    """How one replica's memory divides, per GPU where several share the model. Raises BaseDoesNotFitError."""
    engine = spec.engine
    dtype_bytes = 2 if engine.dtype == "bfloat16" else 4
    shard = shard_shape(shape, engine.tensor_parallel)
    weights = weight_bytes(shard, dtype_bytes, fp8=engine.quantization == "FP8")
    if gpu is None and resolve_device(engine) == "cpu" and (limit := engine.pod.resources.limits.get("memory")):
        usable = parse_bytes(limit) - parse_bytes(engine.memory.host_cache)
        activations = usable // CPU_ACTIVATION_SHARE
    else:
        usable = usable_bytes(_gpu_bytes(spec, gpu), engine.memory.gpu_utilization_percent)
        activations = ACTIVATION_BYTES
    return plan_memory(usable, weights, activations, kv_bytes_per_token(shard, dtype_bytes))


def assumed_memory(spec: LoraPoolSpec, gpu: str | None) -> str:
    """What a replica's memory was taken from, "" where manifests or flags say it."""
    limits = spec.engine.pod.resources.limits
    if gpu is not None or any(mig_slice_bytes(name) for name in limits):
        return ""
    if resolve_device(spec.engine) == "cpu" and limits.get("memory"):
        return f"a replica may take {limits['memory']} less its host cache, a quarter of it for activations"
    return f"a replica's GPU is an {DEFAULT_GPU.upper()} of {GPU_BYTES[DEFAULT_GPU] / 1e9:g} GB (--gpu)"


def _gpu_bytes(spec: LoraPoolSpec, gpu: str | None) -> int:
    slices = [mig_slice_bytes(name) for name in spec.engine.pod.resources.limits]
    slice_bytes = next((each for each in slices if each), None)
    return slice_bytes or GPU_BYTES[gpu or DEFAULT_GPU]
