"""Every option of the installed peft is exact or refused; none can be overlooked."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import nn

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.adapters.options import NO_EFFECT, REFUSED, USED
from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.adapters.peft import inspect_adapter
from lorafleet_engine.errors import BrokenAdapterError, UnsupportedAdapterError
from lorafleet_engine.model.config import read_config
from tests.engine.adapters.conftest import Spoilable
from tests.engine.support.peft_adapters import (
    deltas_of_packed,
    lora_layers,
    make_peft_model,
    set_random_weights,
    true_deltas,
)
from tests.engine.support.tiny import ALL, TinyModel

TABLES = (USED, frozenset(NO_EFFECT), frozenset(REFUSED))
PEFT = {field.name for field in dataclasses.fields(LoraConfig)}
PLAIN: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": ALL}

EXACT: dict[str, dict[str, Any]] = {
    "r": {"r": 3},
    "r above every size of the model": {"r": 130},
    "lora_alpha": {"lora_alpha": 11},
    "use_rslora": {"use_rslora": True},
    "rank_pattern": {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.\w+": 7, "^model.layers.2.mlp.up_proj": 9}},
    "rank_pattern, first key wins": {"rank_pattern": {"proj": 9, ".*_proj": 2, "q_proj": 5}},
    "alpha_pattern": {"alpha_pattern": {"v_proj": 1, r".*\.0\.mlp\..*": 30}},
    "patterns and use_rslora": {"use_rslora": True, "rank_pattern": {"o_proj": 9}, "alpha_pattern": {"o_proj": 2}},
    "target_modules, ends": {"target_modules": ["self_attn.q_proj", "down_proj"]},
    "target_modules, whole paths": {"target_modules": ["model.layers.1.self_attn.v_proj", "k_proj"]},
    "target_modules, absent ones": {"target_modules": ["q_proj", "c_attn"]},
    "target_modules, a pattern": {"target_modules": r"model\.layers\.(0|2)\.(self_attn\.[qv]|mlp\.down)_proj"},
    "target_modules, all-linear": {"target_modules": "all-linear"},
    "exclude_modules, ends": {"exclude_modules": ["k_proj", "layers.1.mlp.up_proj"]},
    "exclude_modules, a pattern": {"exclude_modules": r".*\.1\..*"},
    "exclude_modules with all-linear": {"target_modules": "all-linear", "exclude_modules": ["o_proj"]},
    "layers_to_transform, a number": {"layers_to_transform": 1},
    "layers_to_transform, zero": {"layers_to_transform": 0},
    "layers_to_transform, none of them": {"layers_to_transform": []},
    "layers_to_transform, a list": {"layers_to_transform": [2, 0]},
    "layers_to_transform and a whole path": {
        "layers_to_transform": [0],
        "target_modules": ["q_proj", "model.layers.2.self_attn.q_proj"],
    },
    "layers_pattern": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "layers_pattern, a list": {"layers_to_transform": [1, 2], "layers_pattern": ["h", "layers"]},
    "lora_dropout": {"lora_dropout": 0.5},
    "init_lora_weights, false": {"init_lora_weights": False},
    "init_lora_weights, gaussian": {"init_lora_weights": "gaussian"},
    "init_lora_weights, orthogonal": {"init_lora_weights": "orthogonal"},
    "init_lora_weights, mica": {"init_lora_weights": "mica"},
    "init_lora_weights, eva": {"init_lora_weights": "eva"},
    "fan_in_fan_out": {"fan_in_fan_out": True},
    "ensure_weight_tying": {"ensure_weight_tying": True},
    "inference_mode": {"inference_mode": True},
    "qalora_group_size": {"qalora_group_size": 8},
    "megatron_core": {"megatron_core": "megatron.other"},
    "revision": {"revision": "main"},
}
"""Options that the engine computes as peft does."""


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], TinyModel]) -> TinyModel:
    return tiny("qwen2")


@pytest.fixture(scope="module")
def base(model: TinyModel) -> nn.Module:
    return model.base()


@pytest.fixture(scope="module")
def qwen(model: TinyModel) -> ModelShape:
    return read_config(model.directory).shape


def test_tables_name_every_option_of_peft_once() -> None:
    assert PEFT - frozenset.union(*TABLES) == set(), "a new option of peft: decide what it does to answers"
    assert sum(map(len, TABLES)) == len(frozenset.union(*TABLES))


def test_every_option_has_a_golden() -> None:
    shown = {name.split(",")[0].split(" ")[0] for name in EXACT} | set(REFUSED_CASES)
    elsewhere = {
        "auto_mapping", "base_model_name_or_path", "peft_type", "peft_version", "task_type",
        "loftq_config", "corda_config", "eva_config", "lora_ga_config", "runtime_config",
    }  # fmt: skip
    assert PEFT - shown - elsewhere == set()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXACT)
def test_exact(base: nn.Module, qwen: ModelShape, tmp_path: Path, name: str) -> None:
    peft = make_peft_model(base, PLAIN | EXACT[name])
    set_random_weights(peft)
    peft.save_pretrained(tmp_path)

    packed = pack_adapter(tmp_path, qwen, "float32")

    expected, found = true_deltas(peft), deltas_of_packed(packed, qwen)
    assert found.keys() == expected.keys()
    for path, delta in expected.items():
        torch.testing.assert_close(found[path], delta, rtol=1e-5, atol=1e-6)


def test_all_linear_as_a_word(copy_of: Callable[[str], Spoilable], shape: ModelShape) -> None:
    """peft writes the modules' names; other writers leave the word."""
    spoilable = copy_of("all-linear")
    for word in ("all-linear", "All-Linear"):
        assert inspect_adapter(spoilable.config(target_modules=word).directory, shape, 4).rank == 6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("init", ["pissa", "pissa_niter_4", "olora", "lora_ga"])
def test_converted_initialisations(base: nn.Module, qwen: ModelShape, tmp_path: Path, init: str) -> None:
    """These change the base: as saved they are refused, as converted by peft they add what training added."""
    peft = make_peft_model(base, PLAIN | {"init_lora_weights": init})
    before = {path: layer.base_layer.weight + delta for (path, layer), delta in zipped(peft)}  # type: ignore[union-attr]
    peft.save_pretrained(tmp_path / "start")
    set_random_weights(peft)
    peft.save_pretrained(tmp_path / "raw")
    with pytest.raises(UnsupportedAdapterError, match=f"'{init}'.*path_initial_model_for_weight_conversion"):
        inspect_adapter(tmp_path / "raw", qwen, 4)
    trained = {path: layer.base_layer.weight + delta for (path, layer), delta in zipped(peft)}  # type: ignore[union-attr]
    config = tmp_path / "start" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "init_lora_weights": True}))
    peft.save_pretrained(tmp_path / "plain", path_initial_model_for_weight_conversion=str(tmp_path / "start"))

    found = deltas_of_packed(pack_adapter(tmp_path / "plain", qwen, "float32"), qwen)

    for path, weight in trained.items():
        torch.testing.assert_close(before[path] + found[path], weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("init", ["loftq", "corda", "a_new_one", 7])
def test_other_initialisations_are_refused(copy_of: Callable[[str], Spoilable], shape: ModelShape, init: Any) -> None:
    with pytest.raises(UnsupportedAdapterError, match=f"init_lora_weights='{init}'"):
        inspect_adapter(copy_of("all-r8").config(init_lora_weights=init).directory, shape, 4)


REFUSED_CASES: dict[str, tuple[Any, str]] = {
    "alora_invocation_tokens": ([5, 6], "activated LoRA"),
    "arrow_config": ({"top_k": 1}, "Arrow"),
    "bias": ("all", "bias"),
    "kasa_config": ({"beta": 0.1}, "KaSA"),
    "layer_replication": ([[0, 2], [1, 3]], "layer_replication"),
    "lora_bias": (True, "lora_bias"),
    "megatron_config": ({"a": 1}, "Megatron"),
    "modules_to_save": (["lm_head"], "modules_to_save"),
    "monteclora_config": ({"num_samples": 2}, "MonteCLoRA"),
    "target_parameters": (["mlp.gate_proj.weight"], "target_parameters"),
    "trainable_token_indices": ([1, 2], "trainable_token_indices"),
    "use_bdlora": ({"nblocks": 2, "match_strict": False}, "block-diagonal"),
    "use_dora": (True, "DoRA"),
    "use_qalora": (True, "QALoRA"),
    "velora_config": ({"num_groups": 4}, "VeLoRA"),
}


@pytest.mark.parametrize("option", REFUSED_CASES)
def test_a_refused_option_is_named(copy_of: Callable[[str], Spoilable], shape: ModelShape, option: str) -> None:
    value, word = REFUSED_CASES[option]
    with pytest.raises(UnsupportedAdapterError, match=word) as caught:
        inspect_adapter(copy_of("all-r8").config(**{option: value}).directory, shape, 4)
    assert len(caught.value.reasons) == 1
    assert ":" in caught.value.reasons[0], "it says what to do"


UNDECLARED: dict[str, tuple[dict[str, Any], str]] = {
    "bias, all": ({"bias": "all"}, "bias"),
    "bias, lora_only": ({"bias": "lora_only"}, "bias"),
    "kasa_config": ({"kasa_config": {}}, "KaSA"),
    "layer_replication": ({"layer_replication": [[0, 2], [1, 3]]}, "has no such module"),
    "lora_bias": ({"lora_bias": True}, "a trained bias"),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, "the output layer"),
    "monteclora_config": ({"monteclora_config": {"num_samples": 2}}, "MonteCLoRA"),
    "target_parameters": ({"target_parameters": ["mlp.gate_proj.weight"], "target_modules": ["q_proj"]}, "target"),
    "trainable_token_indices": ({"trainable_token_indices": [1, 2]}, "embedding"),
    "use_dora": ({"use_dora": True}, "DoRA"),
    "velora_config": ({"velora_config": {"num_groups": 4}}, "VeLoRA"),
    "target_modules, lm_head": ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
    "target_modules, embedding": ({"target_modules": ["q_proj", "embed_tokens"]}, "embedding"),
}
"""Options whose tensors give them away, so that they are refused even where the config keeps silent."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNDECLARED)
def test_what_peft_saves_is_refused(base: nn.Module, qwen: ModelShape, tmp_path: Path, name: str) -> None:
    options, word = UNDECLARED[name]
    make_peft_model(base, PLAIN | options).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedAdapterError):
        inspect_adapter(tmp_path, qwen, 4)

    Spoilable(tmp_path).config(
        **{option: "none" if option == "bias" else None for option in options if option != "target_modules"},
        target_modules=[module for module in options.get("target_modules", ALL) if module in ALL],
    )

    with pytest.raises(BrokenAdapterError, match=word):
        inspect_adapter(tmp_path, qwen, 4)


@pytest.mark.parametrize("value", [True, 1, "x", [1], {"a": 1}])
def test_an_unknown_option_that_is_on_is_refused(
    copy_of: Callable[[str], Spoilable], shape: ModelShape, value: Any
) -> None:
    with pytest.raises(UnsupportedAdapterError, match="use_tomorrow is an option that this engine does not know"):
        inspect_adapter(copy_of("all-r8").config(use_tomorrow=value).directory, shape, 4)


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_an_unknown_option_that_is_off_is_taken(
    copy_of: Callable[[str], Spoilable], shape: ModelShape, value: Any
) -> None:
    assert inspect_adapter(copy_of("all-r8").config(use_tomorrow=value).directory, shape, 4).warnings == ()


@pytest.mark.parametrize("task", ["SEQ_CLS", "TOKEN_CLS", "SEQ_2_SEQ_LM"])
def test_other_tasks_are_refused(copy_of: Callable[[str], Spoilable], shape: ModelShape, task: str) -> None:
    with pytest.raises(UnsupportedAdapterError, match=task):
        inspect_adapter(copy_of("all-r8").config(task_type=task).directory, shape, 4)


def zipped(peft: Any) -> list[tuple[tuple[str, Any], torch.Tensor]]:
    """((path, layer), what it adds)."""
    deltas = true_deltas(peft)
    return [((path, layer), deltas[path].detach().clone()) for path, layer in lora_layers(peft).items()]
