"""A published config.json read into the few numbers the decoder needs. Used by runner, adapters and the api's loader.

Torch-free. What the decoder would compute wrongly is refused here, with every reason at once.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.errors import BrokenModelError, UnsupportedModelError
from lorafleet_engine.model.rope_settings import RopeSettings, read_rope, rope_reasons


@dataclass(frozen=True, slots=True)
class Family:
    """What a model_type fixes beside its config: biases of q, k and v always; biases of q, k, v and o where
    attention_bias asks for them; norms of the heads of q and k; sliding_window without a switch beside it."""

    qkv_bias: bool = False
    bias_option: bool = False
    qk_norm: bool = False
    sliding: bool = False


FAMILIES = {
    "llama": Family(bias_option=True),
    "mistral": Family(sliding=True),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(bias_option=True, qk_norm=True),
}
DEFAULT_WINDOW = 4096
"""What transformers takes where a family slides and the file names no window."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes, constants and end tokens of one base model.

    `window` is the number of newest tokens that a token attends to, itself included, None where it attends to all;
    `slides` says that this holds in every layer.
    """

    family: str
    shape: ModelShape
    norm_eps: float
    rope: RopeSettings
    max_positions: int
    window: int | None
    slides: bool
    eos_token_ids: tuple[int, ...]

    def check_length(self, tokens: int) -> None:
        """Raise UnsupportedModelError unless sequences of `tokens` tokens are computed as the model defines them."""
        reason = None
        if tokens > self.max_positions:
            reason = f"the base has {self.max_positions} positions"
        elif self.window is not None and not self.slides and tokens > self.window:
            reason = f"some layers of the base attend to a sliding window of {self.window} tokens, others do not"
            reason += ", which this engine does not do and which makes no difference up to there"
        if reason:
            advice = "set maxModelLen (LORAFLEET_MAX_MODEL_LEN) to at most that"
            raise UnsupportedModelError([f"sequences of {tokens} tokens: {reason}; {advice}"])

    def window_within(self, tokens: int) -> int | None:
        """The window that sequences of up to `tokens` tokens need; None where it makes no difference."""
        return self.window if self.window is not None and self.window < tokens else None


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
    """Translate the two published dictionaries. Raises UnsupportedModelError; KeyError, TypeError or ValueError
    for a size or setting that is missing or senseless."""
    reasons = _unsupported(raw)
    if reasons:
        raise UnsupportedModelError(reasons)
    family, heads = FAMILIES[raw["model_type"]], int(raw["num_attention_heads"])
    biased = family.bias_option and bool(raw.get("attention_bias"))
    shape = ModelShape(
        layers=int(raw["num_hidden_layers"]),
        hidden=int(raw["hidden_size"]),
        intermediate=int(raw["intermediate_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
        vocab=int(raw["vocab_size"]),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=family.qkv_bias or biased,
        output_bias=biased,
        qk_norm=family.qk_norm,
    )
    if shape.head_dim % 2 or shape.heads % shape.kv_heads:
        raise ValueError(f"{shape.heads} heads of {shape.head_dim} cannot share {shape.kv_heads} of keys and values")
    rope = read_rope(raw)
    return ModelConfig(
        family=str(raw["model_type"]),
        shape=shape,
        norm_eps=float(raw["rms_norm_eps"]),
        rope=rope,
        max_positions=max(int(raw["max_position_embeddings"]), rope.positions),
        window=_window(raw, family),
        slides=_slides(raw, family),
        eos_token_ids=_token_ids(generation.get("eos_token_id", raw.get("eos_token_id"))),
    )


def _window(raw: dict[str, Any], family: Family) -> int | None:
    """Some families slide in every layer, others where use_sliding_window says so; then sequences within the window
    are right whichever layers slide."""
    if not family.sliding and not raw.get("use_sliding_window"):
        return None
    window = raw.get("sliding_window", DEFAULT_WINDOW)
    return None if window is None else int(window)


def _slides(raw: dict[str, Any], family: Family) -> bool:
    """Whether a window is that of every layer: by layer_types, else by the family and max_window_layers."""
    layers = raw.get("layer_types")
    if layers:
        return set(layers) == {"sliding_attention"}
    return family.sliding or raw.get("max_window_layers") == 0


def _unsupported(raw: dict[str, Any]) -> list[str]:
    kind = raw.get("model_type")
    family = FAMILIES.get(str(kind))
    optional = family is None or family.bias_option or not raw.get("attention_bias")
    layers = sorted(set(raw.get("layer_types") or ()) - {"full_attention", "sliding_attention"})
    checks = [
        (family is None, f"model_type {kind!r} is none of {sorted(FAMILIES)}"),
        (raw.get("hidden_act") != "silu", f"hidden_act {raw.get('hidden_act')!r} is not silu"),
        (bool(layers), f"layer_types {layers} are not supported"),
        (not optional, f"attention_bias is not an option of {kind!r}"),
        (bool(raw.get("mlp_bias")), "mlp_bias is not supported"),
        (bool(raw.get("quantization_config")), "quantised weights are not supported"),
    ]
    return [reason for failed, reason in checks if failed] + rope_reasons(raw)


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
