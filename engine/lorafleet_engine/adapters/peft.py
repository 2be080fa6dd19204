"""Config and tensors of an adapter brought together: what is adapted, at which rank and scale, or why not.

Called by the loader's inspection and by pack.py. The tensors say what is adapted; where the config says otherwise the
adapter is refused with both sides named.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lorafleet_contracts.capacity import PROJECTIONS, ModelShape, adapter_bytes_by_module, shard_shape
from lorafleet_engine.adapters.config import LoraSettings, read_settings
from lorafleet_engine.adapters.files import DTYPES, TensorFile, open_weights
from lorafleet_engine.adapters.foreign import describe
from lorafleet_engine.errors import BrokenAdapterError, readable

MLP = frozenset({"gate_proj", "up_proj", "down_proj"})
_TENSOR = re.compile(
    r"base_model\.model\.(?P<path>model\.layers\.(?P<layer>\d+)\.(?:self_attn|mlp)\.(?P<module>\w+))"
    r"\.lora_(?P<side>[AB])\.weight"
)


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """One adapted projection: its two tensors, A [rank, in] and B [out, rank], and the scale of their product."""

    layer: int
    module: str
    rank: int
    scale: float
    tensor_a: str
    tensor_b: str


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What an adapter is. `rank` is its largest, `bytes` its size when packed with `dtype_bytes` an element,
    `device_bytes` that of one shard's part."""

    rank: int
    bytes: int
    device_bytes: int
    target_modules: tuple[str, ...]
    base: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """Everything needed to pack: the modules in blob order, their tensors' file, and the warnings so far."""

    modules: tuple[AdaptedModule, ...]
    weights: TensorFile
    settings: LoraSettings
    warnings: tuple[str, ...]


def inspect_adapter(adapter_dir: Path, shape: ModelShape, dtype_bytes: int, shards: int = 1) -> AdapterFacts:
    """Look at an adapter's headers for a base of `shape`, held in so many `shards` (see capacity.shard_shape).

    Raises BrokenAdapterError or UnsupportedAdapterError."""
    plan = plan_adapter(adapter_dir, shape)
    ranks = {(module.layer, module.module): module.rank for module in plan.modules}
    touched = {module.module for module in plan.modules}
    return AdapterFacts(
        rank=max(ranks.values()),
        bytes=adapter_bytes_by_module(shape, ranks, dtype_bytes),
        device_bytes=adapter_bytes_by_module(shard_shape(shape, shards), ranks, dtype_bytes),
        target_modules=tuple(name for name in PROJECTIONS if name in touched),
        base=plan.settings.base,
        warnings=plan.warnings,
    )


def plan_adapter(adapter_dir: Path, shape: ModelShape) -> AdapterPlan:
    """Match tensors, config and base. Raises BrokenAdapterError or UnsupportedAdapterError with all reasons found."""
    settings = read_settings(adapter_dir)
    weights = open_weights(adapter_dir)
    pairs, reasons = _pair(weights, shape)
    reasons += _contradictions(settings, set(pairs), shape)
    modules = []
    for layer, module in sorted(pairs, key=lambda place: (place[0], PROJECTIONS.index(place[1]))):
        path, names = module_path(layer, module), pairs[layer, module]
        rank = settings.rank_of(path)
        reasons += _check_tensors(rank, names, weights, shape.projection(module))
        modules.append(AdaptedModule(layer, module, rank, settings.scale_of(path, rank), names["A"], names["B"]))
    if not modules:
        reasons.insert(0, "the weights hold no LoRA tensors for this base model")
    if reasons:
        raise BrokenAdapterError(_shortened(reasons))
    return AdapterPlan(tuple(modules), weights, settings, tuple(_shortened(_idle_names(settings, modules, shape))))


def module_path(layer: int, module: str) -> str:
    """The base model's own name of a projection."""
    return f"model.layers.{layer}.{'mlp' if module in MLP else 'self_attn'}.{module}"


def _pair(weights: TensorFile, shape: ModelShape) -> tuple[dict[tuple[int, str], dict[str, str]], list[str]]:
    """Sort tensors by (layer, module) and side; every tensor that has no place is a reason."""
    pairs: dict[tuple[int, str], dict[str, str]] = {}
    reasons = []
    for name in sorted(weights.shapes):
        match = _TENSOR.fullmatch(name)
        if match is None or match["module"] not in PROJECTIONS:
            reasons.append(describe(name))
        elif match["path"] != module_path(int(match["layer"]), match["module"]) or int(match["layer"]) >= shape.layers:
            reasons.append(f"tensor {name}: the base model ({shape.layers} layers) has no such module")
        else:
            pairs.setdefault((int(match["layer"]), match["module"]), {})[match["side"]] = name
    for (layer, module), names in list(pairs.items()):
        for side in {"A", "B"} - set(names):
            reasons.append(f"{module_path(layer, module)} has no lora_{side} tensor")
            pairs.pop((layer, module), None)
    return pairs, reasons


def _contradictions(settings: LoraSettings, present: set[tuple[int, str]], shape: ModelShape) -> list[str]:
    """Where config and tensors disagree on which modules are adapted."""
    reasons = []
    for layer in range(shape.layers):
        for module in PROJECTIONS:
            path = module_path(layer, module)
            wanted, found = settings.targeted(path), (layer, module) in present
            if wanted and not found:
                reasons.append(f"adapter_config.json targets {path}, the weights have no tensors for it")
            elif found and not wanted:
                reasons.append(f"the weights have tensors for {path}, adapter_config.json does not target it")
    return reasons


def _check_tensors(rank: int, names: dict[str, str], weights: TensorFile, sizes: tuple[int, int]) -> list[str]:
    fan_in, fan_out = sizes
    expected = {"A": (rank, fan_in), "B": (fan_out, rank)}
    reasons = [
        f"{name} has shape {weights.shapes[name]}; rank {rank} on this base model needs {expected[side]}"
        for side, name in names.items()
        if weights.shapes[name] != expected[side]
    ]
    return reasons + [
        f"{name} is {weights.dtypes[name]}; only {', '.join(DTYPES)} are read: save it as one of them"
        for name in names.values()
        if weights.dtypes[name] not in DTYPES
    ]


def _idle_names(settings: LoraSettings, modules: Sequence[AdaptedModule], shape: ModelShape) -> list[str]:
    """Names and patterns of the config that match nothing: more often a slip than meant."""
    paths = [module_path(module.layer, module.module) for module in modules]
    patterns = {"rank_pattern": settings.ranks.idle_keys(paths), "alpha_pattern": settings.alphas.idle_keys(paths)}
    idle = [f"{field} key {key!r} matches no adapted module" for field, keys in patterns.items() for key in keys]
    every = [module_path(layer, module) for layer in range(shape.layers) for module in PROJECTIONS]
    return idle + [
        f"target_modules names {name!r}, which the base model does not have" for name in settings.idle_targets(every)
    ]


def _shortened(reasons: list[str], limit: int = 8) -> list[str]:
    """At most `limit` reasons: one wrong setting can be wrong for every layer."""
    shown = [readable(reason) for reason in reasons[:limit]]
    return shown if len(reasons) <= limit else [*shown, f"and {len(reasons) - limit} more of this kind"]
