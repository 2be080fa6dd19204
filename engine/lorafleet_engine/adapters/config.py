"""A published adapter_config.json: which modules it adapts, with which rank and scale, as peft reads it.

Used by peft.py. Torch-free.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import regex

from lorafleet_engine.adapters.jsonfiles import parse_object
from lorafleet_engine.adapters.options import refuse_options
from lorafleet_engine.adapters.patterns import (
    ALL_LINEAR,
    MAX_KEYS,
    NameRule,
    Patience,
    ValuePattern,
    compile_pattern,
)
from lorafleet_engine.errors import BrokenAdapterError, UnsupportedAdapterError

CONFIG = "adapter_config.json"
OUTSIDE = ("model.embed_tokens", "lm_head")
"""Modules of every base that can be adapted in peft and are not here. all-linear means neither of them."""

MAX_NAME = 512
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The fields of adapter_config.json that decide the result. Module paths are the base model's own.

    `targets` None is all-linear: every projection."""

    rank: int
    alpha: float
    ranks: ValuePattern[int]
    alphas: ValuePattern[float]
    rslora: bool
    targets: NameRule | None
    excluded: NameRule
    layers: tuple[int, ...]
    layer_patterns: tuple["regex.Pattern[str]", ...]
    patience: Patience
    base: str

    def rank_of(self, path: str) -> int:
        """The rank that the config gives a module."""
        return self.ranks.value_of(path, self.rank)

    def scale_of(self, path: str, rank: int) -> float:
        """alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA (Kalajdzievski, 2023)."""
        alpha = self.alphas.value_of(path, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def targeted(self, path: str) -> bool:
        """Whether the config says that the module is adapted."""
        if self.excluded.holds(path):
            return False
        if self.targets is None:
            return path not in OUTSIDE
        if not self.targets.holds(path):
            return False
        # As in peft: layers_to_transform does not touch a module that is listed by its whole path.
        return not self.layers or self.targets.names_whole(path) or self._in_layers(path)

    def idle_targets(self, paths: list[str]) -> list[str]:
        """Names in the list of targets that name none of the paths."""
        names = self.targets.names if self.targets else ()
        return [name for name in names if not any(path == name or path.endswith(f".{name}") for path in paths)]

    def _in_layers(self, path: str) -> bool:
        matches = (self.patience.match(pattern, path) for pattern in self.layer_patterns)
        found = next((match for match in matches if match is not None), None)
        return found is not None and int(found["idx"]) in self.layers


def read_settings(adapter_dir: Path) -> LoraSettings:
    """Read adapter_dir/adapter_config.json. Raises BrokenAdapterError, or UnsupportedAdapterError with every reason."""
    try:
        raw = parse_object((adapter_dir / CONFIG).read_text("utf-8"))
        reasons = refuse_options(raw)
        settings = _parse(raw)
    except OSError as error:
        raise BrokenAdapterError([f"{CONFIG} cannot be read: {error.strerror}"]) from error
    except (ValueError, TypeError, OverflowError) as error:
        raise BrokenAdapterError([f"{CONFIG} cannot be used: {error}"]) from error
    reasons += [
        f"target_modules adapts {path}, which is not supported: train without it"
        for path in OUTSIDE
        if settings.targeted(path)
    ]
    if reasons:
        raise UnsupportedAdapterError(reasons)
    return settings


def _parse(raw: dict[str, Any]) -> LoraSettings:
    patience = Patience()
    targets = _names(raw, "target_modules")
    if targets is None or targets == "":
        raise ValueError("target_modules is missing: peft would guess the modules; name them")
    layers = _layers(raw.get("layers_to_transform"))
    patterns = _texts(raw.get("layers_pattern"), "layers_pattern")
    _check_layer_rules(raw, targets, patterns)
    everything = isinstance(targets, str) and targets.lower() == ALL_LINEAR
    layer_patterns = [rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\." for pattern in patterns] or [
        r".*?\.[^.]*\.(?P<idx>\d+)\."
    ]
    return LoraSettings(
        rank=_rank(raw.get("r"), "r"),
        alpha=_number(raw.get("lora_alpha"), "lora_alpha"),
        ranks=ValuePattern(_mapping(raw, "rank_pattern", _rank), patience),
        alphas=ValuePattern(_mapping(raw, "alpha_pattern", _number), patience),
        rslora=_flag(raw.get("use_rslora"), "use_rslora"),
        targets=None if everything else NameRule(targets, patience),
        excluded=NameRule(_names(raw, "exclude_modules"), patience),
        layers=layers,
        layer_patterns=tuple(compile_pattern(pattern) for pattern in layer_patterns),
        patience=patience,
        base=_base(raw.get("base_model_name_or_path")),
    )


def _check_layer_rules(raw: dict[str, Any], targets: str | list[str], patterns: list[str]) -> None:
    """What peft itself refuses, because it would be ignored."""
    if isinstance(targets, str) and (
        raw.get("layers_to_transform") is not None or raw.get("layers_pattern") is not None
    ):
        raise ValueError("layers_to_transform and layers_pattern need target_modules to be a list, as peft says")
    if patterns and raw.get("layers_to_transform") is None:
        raise ValueError("layers_pattern needs layers_to_transform, as peft says")


def _rank(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")
    return value


def _number(value: object, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return float(value)


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool | None):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return bool(value)


def _base(value: object) -> str:
    if not isinstance(value, str | None) or len(value or "") > MAX_NAME:
        raise ValueError(f"base_model_name_or_path must be a name of at most {MAX_NAME} characters")
    return value or ""


def _layers(value: object) -> tuple[int, ...]:
    layers = [] if value is None else value if isinstance(value, list) else [value]
    for layer in layers:
        if not isinstance(layer, int) or isinstance(layer, bool):
            raise ValueError(f"layers_to_transform must be integers, not {layer!r}")
    return tuple(layers)


def _mapping(raw: dict[str, Any], name: str, read: Callable[[object, str], Value]) -> dict[str, Value]:
    found = raw.get(name)
    if not isinstance(found, dict | None):
        raise ValueError(f"{name} must be an object, not {found!r}")
    return {key: read(value, f"{name}[{key!r}]") for key, value in (found or {}).items()}


def _names(raw: dict[str, Any], name: str) -> str | list[str] | None:
    value = raw.get(name)
    return value if isinstance(value, str) or value is None else _texts(value, name)


def _texts(value: object, name: str) -> list[str]:
    texts = [] if value is None or value == "" else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > MAX_KEYS or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} must be a string or a list of at most {MAX_KEYS} strings")
    return texts
