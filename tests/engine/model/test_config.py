"""Published configs: what is read, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lorafleet_engine.bench.workload import QWEN25_7B
from lorafleet_engine.errors import BrokenModelError, UnsupportedModelError
from lorafleet_engine.model.config import parse_config, read_config
from lorafleet_engine.model.weights import SafetensorsSource

CPU = torch.device("cpu")


def test_qwen() -> None:
    config = parse_config(QWEN25_7B, {})
    shape = config.shape
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (28, 3584, 28, 4, 128)
    assert (shape.attention_bias, shape.tied_embeddings, config.rope.theta) == (True, False, 1e6)
    assert (shape.output_bias, shape.qk_norm, config.window) == (False, False, None)
    assert config.eos_token_ids == (151645,)


@pytest.mark.parametrize(
    ("changes", "generation", "expected"),
    [({}, {"eos_token_id": [1, 2]}, (1, 2)), ({"eos_token_id": None}, {}, ()), ({}, {"eos_token_id": 7}, (7,))],
)
def test_end_tokens(changes: dict[str, Any], generation: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert parse_config({**QWEN25_7B, **changes}, generation).eos_token_ids == expected


def test_theta_in_the_newer_place() -> None:
    raw = {**QWEN25_7B, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    assert parse_config(raw, {}).rope.theta == 5000


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4}}, "remove it from config.json"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "by layer"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"model_type": "mistral", "attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
    ],
)
def test_unsupported(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        parse_config({**QWEN25_7B, **changes}, {})
    assert len(caught.value.reasons) == 1
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "rope",
    [
        "linear",
        {"rope_theta": 1},
        {"rope_type": "linear"},
        {"rope_type": "yarn", "factor": 0},
        {"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 32},
        {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0},
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1},
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4},
    ],
)
def test_broken_scaling(tmp_path: Path, rope: dict[str, Any] | str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN25_7B, "rope_parameters": rope}))
    with pytest.raises(BrokenModelError):
        read_config(tmp_path)


@pytest.mark.parametrize("changes", [{"head_dim": 63}, {"num_key_value_heads": 3}, {"hidden_size": None}])
def test_broken_sizes(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN25_7B, **changes}))
    with pytest.raises(BrokenModelError):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "llama", "attention_bias": True}, (True, True, False)),
        ({"model_type": "llama"}, (False, False, False)),
        ({"model_type": "mistral"}, (False, False, False)),
        ({"model_type": "qwen2", "attention_bias": False}, (True, False, False)),
        ({"model_type": "qwen3"}, (False, False, True)),
        ({"model_type": "qwen3", "attention_bias": True}, (True, True, True)),
    ],
)
def test_optional_tensors(changes: dict[str, Any], expected: tuple[bool, bool, bool]) -> None:
    shape = parse_config({**QWEN25_7B, **changes}, {}).shape
    assert (shape.attention_bias, shape.output_bias, shape.qk_norm) == expected


WINDOWS: list[tuple[dict[str, Any], int | None, bool]] = [
    ({"model_type": "mistral", "sliding_window": None}, None, True),
    ({"model_type": "mistral", "sliding_window": 1024}, 1024, True),
    ({"model_type": "mistral"}, 4096, True),
    ({"use_sliding_window": False, "sliding_window": 1024}, None, False),
    ({"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 3}, 1024, False),
    ({"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 0}, 1024, True),
    ({"model_type": "mistral", "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}, 9, False),
]
"""Settings, the window, and whether every layer has it."""


@pytest.mark.parametrize(("changes", "window", "slides"), WINDOWS)
def test_window(changes: dict[str, Any], window: int | None, slides: bool) -> None:
    unsaid = {key: value for key, value in QWEN25_7B.items() if key != "sliding_window"}
    config = parse_config({**unsaid, **changes}, {})
    assert config.window == window
    most = config.max_positions if window is None or slides else window
    config.check_length(most)
    assert config.window_within(window or most) is None
    assert config.window_within(1 + (window or most)) == window
    with pytest.raises(UnsupportedModelError, match="positions" if window is None or slides else "window of") as caught:
        config.check_length(1 + most)
    assert f"{most} " in str(caught.value)
    assert "set maxModelLen (LORAFLEET_MAX_MODEL_LEN) to at most that" in str(caught.value)


def test_yarn_reaches_further_than_the_positions_of_its_file() -> None:
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    raw = {**QWEN25_7B, "max_position_embeddings": 40960}
    assert parse_config(raw, {}).max_positions == 40960
    assert parse_config({**raw, "rope_scaling": rope}, {}).max_positions == 131072


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model_type": "llama", "hidden_act": "silu"}'])
def test_unreadable(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises((BrokenModelError, UnsupportedModelError)):
        read_config(tmp_path)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(BrokenModelError):
        read_config(tmp_path)


def write_shards(root: Path) -> dict[str, torch.Tensor]:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}
    for name, tensor in tensors.items():
        save_file({name: tensor}, root / f"{name}.safetensors")
    where = {name: f"{name}.safetensors" for name in tensors}
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return tensors


def test_sharded_weights(tmp_path: Path) -> None:
    tensors = write_shards(tmp_path)
    with SafetensorsSource(tmp_path, CPU, torch.bfloat16) as source:
        assert torch.equal(source.get("a", (2, 3)), tensors["a"].bfloat16())
        with pytest.raises(BrokenModelError, match="no tensor c"):
            source.get("c", (1,))
        with pytest.raises(BrokenModelError, match=r"\(4,\), the config says \(5,\)"):
            source.get("b", (5,))


def test_index_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../a.safetensors"}}')
    with (
        pytest.raises(BrokenModelError, match="leaves the model's directory"),
        SafetensorsSource(tmp_path, CPU, torch.float32),
    ):
        pass


def test_index_that_names_the_wrong_shard(tmp_path: Path) -> None:
    write_shards(tmp_path)
    index = {"weight_map": {"a": "b.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with (
        SafetensorsSource(tmp_path, CPU, torch.float32) as source,
        pytest.raises(BrokenModelError, match="cannot be read"),
    ):
        source.get("a", (2, 3))


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(BrokenModelError, match="cannot be opened"), SafetensorsSource(tmp_path, CPU, torch.float32):
        pass
