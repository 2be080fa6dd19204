"""Makes a tiny Llama with random weights, its byte-level tokenizer and peft-format adapters: seconds to serve on a CPU.

Used by the engine's tests and the conformance suite. Everything is seeded; nothing is downloaded.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 2, 64, 128, 4, 2, 16
MODULES = {
    "self_attn.q_proj": (HIDDEN, HEADS * HEAD_DIM),
    "self_attn.k_proj": (HIDDEN, KV_HEADS * HEAD_DIM),
    "self_attn.v_proj": (HIDDEN, KV_HEADS * HEAD_DIM),
    "self_attn.o_proj": (HEADS * HEAD_DIM, HIDDEN),
    "mlp.gate_proj": (HIDDEN, INTERMEDIATE),
    "mlp.up_proj": (HIDDEN, INTERMEDIATE),
    "mlp.down_proj": (INTERMEDIATE, HIDDEN),
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class AdapterRecipe:
    """What to put into an adapter. `config` is merged over a plain adapter_config.json."""

    seed: int
    rank: int = 8
    modules: tuple[str, ...] = tuple(MODULES)
    scale: float = 0.3
    config: dict[str, Any] | None = None


def make_model(folder: Path, seed: int = 0) -> Path:
    """Write a whole base model into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    end = tokenizer.token_to_id("<|im_end|>")
    _write(folder / "config.json", _config(vocab, end))
    _write(folder / "special_tokens_map.json", {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    _write(folder / "tokenizer_config.json", {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"})
    save_file(_weights(vocab, seed), folder / "model.safetensors")
    return folder


def make_adapter(folder: Path, recipe: AdapterRecipe) -> Path:
    """Write a LoRA adapter in peft's format into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(recipe.seed)
    tensors = {}
    for layer in range(LAYERS):
        for module in recipe.modules:
            fan_in, fan_out = MODULES[module]
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{prefix}.lora_A.weight"] = _normal(random, (recipe.rank, fan_in), recipe.scale)
            tensors[f"{prefix}.lora_B.weight"] = _normal(random, (fan_out, recipe.rank), recipe.scale)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": recipe.rank,
        "lora_alpha": recipe.rank,
        "target_modules": sorted({module.split(".")[-1] for module in recipe.modules}),
        "bias": "none",
    }
    _write(folder / "adapter_config.json", config | (recipe.config or {}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def _config(vocab: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": vocab,
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }


def _weights(vocab: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    tensors = {"model.embed_tokens.weight": _normal(random, (vocab, HIDDEN), 1.0)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for module, (fan_in, fan_out) in MODULES.items():
            tensors[f"{prefix}.{module}.weight"] = _normal(random, (fan_out, fan_in), 1.5 / fan_in**0.5)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    return tensors


def _make_tokenizer() -> Tokenizer:
    """All 256 bytes and a few merges, so that words are several tokens and many characters span tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("a", "n"), ("Ġ", "a"), ("o", "n"), ("l", "l")]
    entries = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({entry: number for number, entry in enumerate(entries)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return tokenizer


def _normal(random: np.random.Generator, shape: tuple[int, ...], scale: float) -> Any:
    return (random.standard_normal(shape) * scale).astype(np.float32)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))
