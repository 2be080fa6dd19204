"""Small random base models and one adapter of every kind, made with transformers and peft."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 320
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "attention-r4": {"r": 4, "lora_alpha": 8, "target_modules": ALL[:4]},
    "all-r8": {"r": 8, "lora_alpha": 16, "target_modules": ALL},
    "odd-r5": {"r": 5, "lora_alpha": 7, "target_modules": ALL},
    "narrow-qv": {"r": 16, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "rslora": {"r": 16, "lora_alpha": 8, "target_modules": ALL, "use_rslora": True},
    "patterns": {
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ALL,
        "rank_pattern": {"down_proj": 24, "layers.1.self_attn.q_proj": 3},
        "alpha_pattern": {"v_proj": 40, r".*\.0\.mlp\.up_proj": 4},
    },
    "layers": {"r": 8, "lora_alpha": 32, "target_modules": ALL, "layers_to_transform": [0, 2]},
    "regex": {"r": 8, "lora_alpha": 32, "target_modules": r".*\.layers\.[12]\..*(q|up|down)_proj"},
    "all-linear": {"r": 6, "lora_alpha": 12, "target_modules": "all-linear"},
    "excluding": {"r": 8, "lora_alpha": 16, "target_modules": ALL, "exclude_modules": ["k_proj", "down_proj"]},
    "r256": {"r": 256, "lora_alpha": 64, "target_modules": ALL},
}


@dataclass(frozen=True)
class TinyModel:
    """A base model's directory and its adapters' by kind."""

    directory: Path
    adapters: dict[str, Path]

    def base(self) -> nn.Module:
        """The reference without any adapter."""
        model: nn.Module = AutoModelForCausalLM.from_pretrained(self.directory, dtype=torch.float32).eval()
        return model

    def merged(self, kind: str) -> nn.Module:
        """The reference with an adapter merged into its weights, as peft does it (which reads no sharded ones)."""
        files = self.adapters["all-r8" if kind == "sharded" else kind]
        model: nn.Module = PeftModel.from_pretrained(self.base(), files).merge_and_unload().eval()
        return model


def make_tiny(root: Path, family: str) -> TinyModel:
    """Write a model and all KINDS of adapters under `root`; always the same bytes for the same family."""
    model = make_model(root, {"model_type": family, "tie_word_embeddings": family == "llama"}, tuple(KINDS))
    model.adapters["sharded"] = _sharded(model.adapters["all-r8"], root / "sharded")
    model.adapters["bfloat16"] = _rounded(model.adapters["odd-r5"], root / "bfloat16")
    return model


def make_model(root: Path, settings: dict[str, Any], kinds: tuple[str, ...], shard_size: str = "1GB") -> TinyModel:
    """Write a model of SIZES changed by `settings` (those of config.json) and adapters of `kinds` under `root`."""
    generator = torch.Generator().manual_seed(11)
    config = {**SIZES, **settings}
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    for name, weight in base.named_parameters():
        spread = 0.05 if "norm" in name else 0.3 if "embed" in name else 0.25
        weight.data.normal_(1.0 if "norm" in name else 0.0, spread, generator=generator)
    base.save_pretrained(root / "base", max_shard_size=shard_size)
    return TinyModel(root / "base", {kind: _make_adapter(root, kind, generator) for kind in kinds})


def _make_adapter(root: Path, kind: str, generator: torch.Generator) -> Path:
    base = AutoModelForCausalLM.from_pretrained(root / "base", dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **KINDS[kind]))
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data.normal_(0, 0.15, generator=generator)
    model.save_pretrained(root / kind)
    return root / kind


def _sharded(source: Path, target: Path) -> Path:
    """The same tensors in two files with an index."""
    target.mkdir()
    (target / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    tensors = load_file(source / "adapter_model.safetensors")
    names = sorted(tensors)
    shards = {"adapter_model-1.safetensors": names[::2], "adapter_model-2.safetensors": names[1::2]}
    for file, own in shards.items():
        save_file({name: tensors[name] for name in own}, target / file)
    where = {name: file for file, own in shards.items() for name in own}
    (target / "adapter_model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return target


def _rounded(source: Path, target: Path) -> Path:
    """The same adapter with every other tensor saved as bfloat16."""
    target.mkdir()
    (target / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    tensors = load_file(source / "adapter_model.safetensors")
    rounded = {
        name: tensors[name].to(torch.bfloat16 if at % 2 else torch.float32) for at, name in enumerate(sorted(tensors))
    }
    save_file(rounded, target / "adapter_model.safetensors")
    return target
