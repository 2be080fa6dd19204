"""The fixed multi-LoRA workload that every engine is measured on, rivals and this one alike.

Qwen2.5-7B's shape with random weights, PEFT adapters with random weights on all seven projections, and request sets
drawn from fixed seeds. Used by bench/smoke.py, bench/parts/ and the rivals' scripts; what it draws must never change.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from lorafleet_contracts.capacity import PROJECTIONS, ModelShape
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.model.decoder import parent

QWEN25_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "sliding_window": None,
    "transformers_version": "4.43.1",
}
RANKS = (8, 16, 32, 64)
ALPHA_PER_RANK = 2


@dataclass(frozen=True, slots=True)
class WorkloadAdapter:
    """One adapter of the workload on disk."""

    name: str
    directory: Path
    rank: int


def write_model(root: Path, raw: dict[str, Any] = QWEN25_7B) -> Path:
    """Write the base model's config (engines make its random weights themselves)."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text(json.dumps(raw))
    return root


def write_adapters(
    root: Path, numbers: Sequence[int], ranks: tuple[int, ...] = RANKS, raw: dict[str, Any] = QWEN25_7B
) -> list[WorkloadAdapter]:
    """Write PEFT adapters (bf16) by their numbers, number k of rank ranks[k % len(ranks)]; those that exist are kept.

    Every adapter has bytes of its own, seeded by its number, so that an engine which keys by content holds and reads as
    many bytes as one which keys by name. 200 adapters take 30.3 GB.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = parse_config(raw, {}).shape
    adapters = []
    for number in numbers:
        adapter = WorkloadAdapter(f"a{number:04d}", root / f"a{number:04d}", ranks[number % len(ranks)])
        if not (adapter.directory / "adapter_config.json").exists():
            _write_adapter(adapter, shape, number, device)
        adapters.append(adapter)
    return adapters


def _write_adapter(adapter: WorkloadAdapter, shape: ModelShape, seed: int, device: torch.device) -> None:
    adapter.directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device=device).manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(shape.layers):
        for module in PROJECTIONS:
            prefix = f"base_model.model.model.layers.{layer}.{parent(module)}.{module}"
            down, up = adapter_matrices(shape.projection(module), adapter.rank, generator)
            tensors[f"{prefix}.lora_A.weight"] = down.to(torch.bfloat16).cpu()
            tensors[f"{prefix}.lora_B.weight"] = up.to(torch.bfloat16).cpu()
    save_file(tensors, adapter.directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapter.rank,
        "lora_alpha": ALPHA_PER_RANK * adapter.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(PROJECTIONS),
        "base_model_name_or_path": "",
        "inference_mode": True,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
    }
    (adapter.directory / "adapter_config.json").write_text(json.dumps(config))


def adapter_matrices(
    sizes: tuple[int, int], rank: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, in] and B [out, rank] in fp32 on the generator's device, not yet scaled."""
    fan_in, fan_out = sizes
    down = torch.randn(rank, fan_in, generator=generator, device=generator.device) / math.sqrt(fan_in)
    up = torch.randn(fan_out, rank, generator=generator, device=generator.device) * 0.01
    return down, up


def prompts(count: int, length: int, seed: int = 0, vocab: int = 151000) -> list[list[int]]:
    """`count` prompts of `length` random token ids."""
    random = np.random.RandomState(seed)
    return [random.randint(100, vocab, size=length).tolist() for _ in range(count)]


def zipf_ids(count: int, catalogue: int, alpha: float, seed: int = 0) -> list[int]:
    """`count` adapter numbers below `catalogue`, number k drawn with weight (k + 1) ** -alpha."""
    random = np.random.RandomState(seed)
    weights = 1.0 / np.arange(1, catalogue + 1) ** alpha
    ids: list[int] = random.choice(catalogue, size=count, p=weights / weights.sum()).tolist()
    return ids
