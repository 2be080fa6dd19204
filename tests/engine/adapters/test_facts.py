"""What an adapter is said to be, and what is refused, with the reasons."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lorafleet_contracts.capacity import ModelShape, adapter_bytes
from lorafleet_engine.adapters.peft import inspect_adapter
from lorafleet_engine.errors import BrokenAdapterError, ReasonsError, UnsupportedAdapterError
from tests.engine.adapters.conftest import Spoilable
from tests.engine.support.tiny import ALL, TinyModel

FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("kind", "rank", "modules"),
    [
        ("attention-r4", 4, ALL[:4]),
        ("all-r8", 8, ALL),
        ("sharded", 8, ALL),
        ("narrow-qv", 16, ["q_proj", "v_proj"]),
        ("patterns", 24, ALL),
        ("regex", 8, ["q_proj", "up_proj", "down_proj"]),
        ("excluding", 8, ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj"]),
    ],
)
def test_facts(tiny: Callable[[str], TinyModel], shape: ModelShape, kind: str, rank: int, modules: list[str]) -> None:
    facts = inspect_adapter(tiny("llama").adapters[kind], shape, 2)
    assert (facts.rank, list(facts.target_modules), facts.warnings) == (rank, modules, ())
    if kind in ("attention-r4", "all-r8", "narrow-qv"):
        assert facts.bytes == facts.device_bytes == adapter_bytes(shape, rank, modules)
        halves = inspect_adapter(tiny("llama").adapters[kind], shape, 2, shards=2)
        assert (halves.bytes, halves.device_bytes) == (facts.bytes, adapter_bytes(shape, rank, modules, 2, 2))
    assert facts.base.endswith("base")


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("peft_type", "IA3", "peft_type"),
        ("bias", "all", "bias"),
        ("use_dora", True, "DoRA"),
        ("modules_to_save", ["lm_head"], "modules_to_save"),
        ("init_lora_weights", "pissa_niter_4", "pissa"),
        ("init_lora_weights", "olora", "olora"),
        ("trainable_token_indices", [1, 2], "trainable_token_indices"),
        ("target_parameters", ["x.weight"], "target_parameters"),
        ("layer_replication", [[0, 2]], "layer_replication"),
        ("lora_bias", True, "lora_bias"),
        ("alora_invocation_tokens", [5], "alora"),
        ("target_modules", ["q_proj", "lm_head"], "lm_head"),
        ("target_modules", ["embed_tokens"], "embed_tokens"),
    ],
)
def test_unsupported(copy_of: Callable[[str], Spoilable], shape: ModelShape, field: str, value: Any, word: str) -> None:
    with pytest.raises(UnsupportedAdapterError) as caught:
        inspect_adapter(copy_of("all-r8").config(**{field: value}).directory, shape, 4)
    assert len(caught.value.reasons) == 1
    assert word in caught.value.reasons[0]


def test_all_reasons_at_once(copy_of: Callable[[str], Spoilable], shape: ModelShape) -> None:
    spoiled = copy_of("all-r8").config(use_dora=True, bias="lora_only", modules_to_save=["lm_head"])
    with pytest.raises(UnsupportedAdapterError) as caught:
        inspect_adapter(spoiled.directory, shape, 4)
    assert len(caught.value.reasons) == 3


BROKEN: dict[str, tuple[Callable[[Spoilable], object], str]] = {
    "rank of the config": (lambda a: a.config(r=4), "rank 4"),
    "missing tensor": (lambda a: a.tensors(lambda t: t.pop(FIRST)), "has no lora_A"),
    "config names a module without tensors": (
        lambda a: a.tensors(lambda t: [t.pop(name) for name in list(t) if "k_proj" in name]),
        "targets model.layers.0.self_attn.k_proj",
    ),
    "config excludes a module with tensors": (lambda a: a.config(target_modules=ALL[:6]), "does not target it"),
    "layers without tensors": (
        lambda a: a.tensors(lambda t: [t.pop(name) for name in list(t) if ".layers.1." in name]),
        "layers.1",
    ),
    "foreign tensor": (lambda a: a.tensors(lambda t: t.update({"x.lora_A.weight": torch.ones(2)})), "x.lora_A"),
    "embedding": (
        lambda a: a.tensors(
            lambda t: t.update({"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(8, 320)})
        ),
        "embed_tokens",
    ),
    "layer that the base lacks": (
        lambda a: a.tensors(lambda t: t.update({FIRST.replace("layers.0", "layers.3"): t[FIRST].clone()})),
        "3 layers",
    ),
    "wrong block": (
        lambda a: a.tensors(lambda t: t.update({FIRST.replace("self_attn", "mlp"): t[FIRST].clone()})),
        "no such module",
    ),
    "shape of another base": (lambda a: a.tensors(lambda t: t.update({FIRST: torch.ones(8, 65)})), "(8, 65)"),
    "config is no JSON": (lambda a: (a.directory / "adapter_config.json").write_text("{"), "adapter_config.json"),
    "config is a list": (lambda a: (a.directory / "adapter_config.json").write_text("[]"), "not a JSON object"),
    "config missing": (lambda a: (a.directory / "adapter_config.json").unlink(), "adapter_config.json"),
    "config without rank": (lambda a: a.config(r=None), "r must be a positive integer"),
    "rank zero": (lambda a: a.config(r=0), "positive"),
    "bad pattern": (lambda a: a.config(rank_pattern={"(": 8}), "adapter_config.json"),
    "weights missing": (lambda a: (a.directory / "adapter_model.safetensors").unlink(), "cannot be opened"),
    "weights truncated": (
        lambda a: (a.directory / "adapter_model.safetensors").write_bytes(
            (a.directory / "adapter_model.safetensors").read_bytes()[:-100]
        ),
        "cannot be opened",
    ),
    "weights are no safetensors": (
        lambda a: (a.directory / "adapter_model.safetensors").write_bytes(b"\xff" * 64),
        "cannot be opened",
    ),
    "no tensors": (lambda a: a.tensors(dict.clear), "no LoRA tensors"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(copy_of: Callable[[str], Spoilable], shape: ModelShape, name: str) -> None:
    spoil, word = BROKEN[name]
    adapter = copy_of("all-r8")
    spoil(adapter)
    with pytest.raises(BrokenAdapterError) as caught:
        inspect_adapter(adapter.directory, shape, 4)
    assert any(word in reason for reason in caught.value.reasons), caught.value.reasons
    assert len(caught.value.reasons) <= 9


def test_pickle_is_never_opened(copy_of: Callable[[str], Spoilable], shape: ModelShape) -> None:
    directory = copy_of("all-r8").directory
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    with pytest.raises(UnsupportedAdapterError, match="pickle"):
        inspect_adapter(directory, shape, 4)


@pytest.mark.parametrize("shard", ["../adapter_model.safetensors", "adapter_model.bin", "missing.safetensors"])
def test_index_stays_in_its_folder(copy_of: Callable[[str], Spoilable], shape: ModelShape, shard: str) -> None:
    directory = copy_of("sharded").directory
    index = {"weight_map": {FIRST: shard}}
    (directory / "adapter_model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BrokenAdapterError, match="cannot be opened"):
        inspect_adapter(directory, shape, 4)


def test_pattern_that_matches_nothing_is_a_warning(copy_of: Callable[[str], Spoilable], shape: ModelShape) -> None:
    adapter = copy_of("all-r8").config(rank_pattern={"w_proj": 8}, alpha_pattern={"layers.9.mlp.up_proj": 1})
    facts = inspect_adapter(adapter.directory, shape, 4)
    assert [warning.split(" matches")[0] for warning in facts.warnings] == [
        "rank_pattern key 'w_proj'",
        "alpha_pattern key 'layers.9.mlp.up_proj'",
    ]


def test_another_base_is_refused(tiny: Callable[[str], TinyModel], shape: ModelShape) -> None:
    other = ModelShape(shape.layers, 32, 96, 4, 2, 16, 320)
    with pytest.raises(ReasonsError):
        inspect_adapter(tiny("llama").adapters["all-r8"], other, 4)


def test_demo_of_an_empty_folder(tmp_path: Path, shape: ModelShape) -> None:
    with pytest.raises(BrokenAdapterError):
        inspect_adapter(tmp_path, shape, 4)


@pytest.mark.parametrize("field", ["target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"])
def test_a_pattern_that_backtracks_for_ever_is_refused(
    copy_of: Callable[[str], Spoilable], shape: ModelShape, field: str
) -> None:
    endless = r"(?P<all>" + ".*" * 12 + r")(?=(?P=all).)[A-Z]"
    value = {endless: 8} if field.endswith("pattern") else endless
    with pytest.raises(UnsupportedAdapterError, match="takes too long"):
        inspect_adapter(copy_of("all-r8").config(**{field: value}).directory, shape, 2)
