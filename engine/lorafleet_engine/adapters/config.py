"""A published adapter_config.json: which modules it adapts, with which rank and scale, as peft reads it.

Used by peft.py. Torch-free.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.errors import BrokenAdapterError, UnsupportedAdapterError

MATCH_SECONDS = 0.2
"""A pattern comes from whoever made the adapter: one that backtracks for longer on a module's path is refused."""

MERGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the base weights, so that the adapter alone does not say what was trained."""

REFUSED_WHEN_SET = {
    "use_dora": "DoRA (use_dora) is not supported",
    "lora_bias": "biases of LoRA layers (lora_bias) are not supported",
    "modules_to_save": "whole modules saved beside the adapter (modules_to_save) are not supported",
    "fan_in_fan_out": "fan_in_fan_out is for transposed layers, which the base does not have",
    "trainable_token_indices": "trained token embeddings (trainable_token_indices) are not supported",
    "target_parameters": "adapted bare parameters (target_parameters) are not supported",
    "layer_replication": "layer_replication is not supported",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens) is not supported",
    "use_qalora": "QALoRA (use_qalora) is not supported",
    "use_bdlora": "block-diagonal LoRA (use_bdlora) is not supported",
    "arrow_config": "Arrow routing (arrow_config) is not supported",
    "kasa_config": "KaSA (kasa_config) is not supported",
    "velora_config": "VeLoRA (velora_config) is not supported",
    "monteclora_config": "MonteCLoRA (monteclora_config) is not supported",
}


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The fields of adapter_config.json that decide the result. Module paths are the base model's own."""

    rank: int
    alpha: float
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    rslora: bool
    targets: str | tuple[str, ...]
    excluded: str | tuple[str, ...]
    layers: tuple[int, ...] | None
    layers_pattern: tuple[str, ...]
    base: str

    def rank_of(self, path: str) -> int:
        """The rank that the config gives a module."""
        key = matching_key(self.rank_pattern, path)
        return self.rank if key is None else self.rank_pattern[key]

    def scale_of(self, path: str) -> float:
        """alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA (Kalajdzievski, 2023)."""
        key = matching_key(self.alpha_pattern, path)
        alpha = self.alpha if key is None else self.alpha_pattern[key]
        rank = self.rank_of(path)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def targeted(self, path: str) -> bool:
        """Whether the config says that the module is adapted."""
        if _named(self.excluded, path):
            return False
        if self.targets == "all-linear":
            return True
        if isinstance(self.targets, str):
            return _named(self.targets, path)
        return _named(self.targets, path) and self._in_layers(path)

    def _in_layers(self, path: str) -> bool:
        if self.layers is None:
            return True
        patterns = [rf"(?:^|.*?\.){pattern}\.(\d+)\." for pattern in self.layers_pattern] or [r".*?\.[^.]*\.(\d+)\."]
        found = next((match for pattern in patterns if (match := _match(pattern, path))), None)
        return found is not None and int(found[1]) in self.layers


def matching_key(pattern: Iterable[str], path: str) -> str | None:
    """The first key that names the module: a regular expression for its whole path or the end of it after a dot."""
    return next((key for key in pattern if _match(rf"(.*\.)?({key})$", path)), None)


def _named(names: str | tuple[str, ...], path: str) -> bool:
    """A string is a regular expression for the whole path; a list names paths or their ends."""
    if isinstance(names, str):
        return bool(names) and _match(rf"(?:{names})\Z", path) is not None
    return any(path == name or path.endswith(f".{name}") for name in names)


def _match(pattern: str, path: str) -> "regex.Match[str] | None":
    """`re.match` with a limit on its time. Raises UnsupportedAdapterError past it."""
    try:
        return regex.match(pattern, path, timeout=MATCH_SECONDS)
    except TimeoutError:
        raise UnsupportedAdapterError([f"the pattern {pattern!r} takes too long to match; simplify it"]) from None


def read_settings(adapter_dir: Path) -> LoraSettings:
    """Read adapter_dir/adapter_config.json. Raises BrokenAdapterError, or UnsupportedAdapterError with every reason."""
    try:
        raw = json.loads((adapter_dir / "adapter_config.json").read_text())
        if not isinstance(raw, dict):
            raise ValueError("it is not a JSON object")
        reasons = _unsupported(raw)
        settings = _parse(raw)
    except (OSError, ValueError, KeyError, TypeError, regex.error) as error:
        raise BrokenAdapterError([f"adapter_config.json cannot be used: {type(error).__name__}: {error}"]) from error
    if reasons:
        raise UnsupportedAdapterError(reasons)
    return settings


def _parse(raw: dict[str, Any]) -> LoraSettings:
    layers = raw.get("layers_to_transform")
    if isinstance(layers, int):
        layers = [layers]
    pattern = raw.get("layers_pattern") or []
    rank_pattern: dict[str, int] = dict(raw.get("rank_pattern") or {})
    alpha_pattern: dict[str, float] = dict(raw.get("alpha_pattern") or {})
    for name in (*rank_pattern, *alpha_pattern):
        regex.compile(name)
    ranks = (raw["r"], *rank_pattern.values())
    if not all(isinstance(rank, int) and rank > 0 for rank in ranks):
        raise ValueError(f"ranks must be positive integers, not {ranks}")
    return LoraSettings(
        rank=raw["r"],
        alpha=float(raw["lora_alpha"]),
        rank_pattern=rank_pattern,
        alpha_pattern=alpha_pattern,
        rslora=bool(raw.get("use_rslora", False)),
        targets=_names(raw.get("target_modules")),
        excluded=_names(raw.get("exclude_modules")),
        layers=tuple(int(layer) for layer in layers) if layers else None,
        layers_pattern=(pattern,) if isinstance(pattern, str) else tuple(pattern),
        base=str(raw.get("base_model_name_or_path") or ""),
    )


def _names(value: str | list[str] | None) -> str | tuple[str, ...]:
    if isinstance(value, str):
        if value != "all-linear":
            regex.compile(value)
        return value
    return tuple(value or ())


def _unsupported(raw: dict[str, Any]) -> list[str]:
    init = str(raw.get("init_lora_weights", "")).lower()
    targets = raw.get("target_modules") or []
    foreign = [] if isinstance(targets, str) else sorted(name for name in targets if not _is_projection(name))
    checks: list[tuple[Callable[[], bool], str]] = [
        (lambda: raw.get("peft_type") != "LORA", f"peft_type {raw.get('peft_type')!r} is not LORA"),
        (lambda: raw.get("bias", "none") != "none", f"trained biases (bias={raw.get('bias')!r}) are not supported"),
        (
            lambda: init.startswith(MERGING_INITS),
            f"init_lora_weights={init!r} changes the base weights: convert the adapter to plain LoRA first",
        ),
        (lambda: bool(foreign), f"target_modules {foreign} are none of {list(PROJECTIONS)}"),
    ]
    reasons = [reason for failed, reason in checks if failed()]
    return reasons + [reason for name, reason in REFUSED_WHEN_SET.items() if raw.get(name)]


def _is_projection(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in PROJECTIONS
