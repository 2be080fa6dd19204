"""A published config.json read into the few numbers the decoder needs. Used by runner, adapters and the api's loader.

Torch-free. What the decoder would compute wrongly is refused here, with every reason at once.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.errors import BrokenModelError, UnsupportedModelError

FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes, constants and end tokens of one base model."""

    family: str
    shape: ModelShape
    norm_eps: float
    rope_theta: float
    max_positions: int
    eos_token_ids: tuple[int, ...]


def read_config(model_dir: Path) -> ModelConfig:
    """Read `model_dir`/config.json (and generation_config.json for the end tokens, where there is one).

    Raises BrokenModelError when it cannot be read and UnsupportedModelError with every unsupported setting.
    """
    try:
        raw = json.loads((model_dir / "config.json").read_text())
        generation = model_dir / "generation_config.json"
        extra = json.loads(generation.read_text()) if generation.exists() else {}
        if not isinstance(raw, dict) or not isinstance(extra, dict):
            raise ValueError("it is not a JSON object")
        return parse_config(raw, extra)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenModelError([f"config.json cannot be used: {type(error).__name__}: {error}"]) from error


def parse_config(raw: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    """Translate the two published dictionaries. Raises UnsupportedModelError, KeyError for a missing size."""
    reasons = _unsupported(raw)
    if reasons:
        raise UnsupportedModelError(reasons)
    heads = int(raw["num_attention_heads"])
    shape = ModelShape(
        layers=int(raw["num_hidden_layers"]),
        hidden=int(raw["hidden_size"]),
        intermediate=int(raw["intermediate_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
        vocab=int(raw["vocab_size"]),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=raw["model_type"] == "qwen2",
    )
    return ModelConfig(
        family=str(raw["model_type"]),
        shape=shape,
        norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(_rope(raw).get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        max_positions=int(raw["max_position_embeddings"]),
        eos_token_ids=_token_ids(generation.get("eos_token_id", raw.get("eos_token_id"))),
    )


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Newer files put theta and scaling into `rope_parameters`, older ones scaling alone into `rope_scaling`."""
    found: dict[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return found


def _unsupported(raw: dict[str, Any]) -> list[str]:
    rope = _rope(raw)
    scaling = rope.get("rope_type", rope.get("type", "default"))
    checks = [
        (raw.get("model_type") not in FAMILIES, f"model_type {raw.get('model_type')!r} is none of {sorted(FAMILIES)}"),
        (raw.get("hidden_act") != "silu", f"hidden_act {raw.get('hidden_act')!r} is not silu"),
        (scaling != "default", f"rope scaling {scaling!r} is not supported"),
        (bool(raw.get("use_sliding_window")), "sliding-window attention is not supported"),
        (raw.get("model_type") == "llama" and bool(raw.get("attention_bias")), "attention_bias is not supported"),
        (bool(raw.get("mlp_bias")), "mlp_bias is not supported"),
        (bool(raw.get("quantization_config")), "quantised weights are not supported"),
    ]
    return [reason for failed, reason in checks if failed]


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
