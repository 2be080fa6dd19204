"""Angles of every way of scaling positions, as transformers computes them for published settings."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from lorafleet_engine.bench.workload import QWEN25_7B
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.model.rope import rope_frequencies, rope_table

LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA31 |= {"original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
PUBLISHED: dict[str, dict[str, Any]] = {
    "none": {"rope_scaling": None, "rope_theta": 500_000.0},
    "old-linear": {"rope_scaling": {"type": "linear", "factor": 8.0}, "rope_theta": 10_000.0},
    "llama-3.1": {"rope_scaling": LLAMA31, "rope_theta": 500_000.0},
    "llama-3.2": {"rope_scaling": {**LLAMA31, "factor": 32.0}, "rope_theta": 500_000.0},
    "qwen2.5": {"rope_scaling": {**YARN, "type": "yarn"}, "rope_theta": 1e6},
    "inside": {"rope_parameters": {**YARN, "rope_theta": 5e6}},
    "beside": {"rope_parameters": YARN, "rope_theta": 1e6, "original_max_position_embeddings": 16384},
    "unbounded": {"rope_parameters": {**YARN, "truncate": False, "attention_factor": 1.5}},
    "betas": {"rope_parameters": {**YARN, "beta_fast": 8, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 1.3}},
    "one-mscale": {"rope_parameters": {**YARN, "mscale": 0.7}},
    "no-factor": {"rope_parameters": {**YARN, "factor": None}},
    "both": {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "rope_scaling": LLAMA31},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_transformers(name: str) -> None:
    sizes = {"hidden_size": 1024, "num_attention_heads": 8, "head_dim": 128, "max_position_embeddings": 131072}
    common = {key: value for key, value in QWEN25_7B.items() if "rope" not in key}
    config = parse_config({**common, "model_type": "llama", **sizes, **PUBLISHED[name]}, {})
    published = {key: dict(value) if isinstance(value, dict) else value for key, value in PUBLISHED[name].items()}
    reference = LlamaRotaryEmbedding(LlamaConfig(**sizes, **published))
    torch.testing.assert_close(rope_frequencies(config.rope, 128), reference.inv_freq, rtol=1e-6, atol=0)
    assert config.rope.attention_factor == pytest.approx(reference.attention_scaling)
    cos, sin = reference(torch.zeros(1), torch.arange(512)[None])
    table = rope_table(config, 512, torch.device("cpu"))
    torch.testing.assert_close(table, torch.stack((cos[0, :, :64], sin[0, :, :64]), dim=1), atol=1e-4, rtol=0)
