"""Whatever the files hold, an adapter is packed as its config says or refused with reasons; nothing else can happen.

A few cases run with the unit tests, beside the corpus of hostile files and of configs as trainers write them;
`make test-long` runs LORAFLEET_CASES of each.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.adapters.options import NO_EFFECT, REFUSED, USED
from lorafleet_engine.adapters.pack import check_values, pack_adapter
from lorafleet_engine.adapters.peft import inspect_adapter
from lorafleet_engine.errors import MAX_REASON, BrokenAdapterError, UnsupportedAdapterError
from tests.engine.support.hostile import assemble, take_apart
from tests.engine.support.tiny import ALL, TinyModel
from tests.support.cases import cases

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SECONDS = 8.0
fuzzing = settings(max_examples=cases(12), deadline=None, suppress_health_check=list(HealthCheck))

PEFT_0_3 = {
    "base_model_name_or_path": "base", "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "lora_alpha": 16, "lora_dropout": 0.05, "modules_to_save": None, "peft_type": "LORA",
    "r": 8, "target_modules": ALL, "task_type": "CAUSAL_LM",
}  # fmt: skip
PEFT_0_10 = PEFT_0_3 | {
    "alpha_pattern": {}, "auto_mapping": None, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "megatron_config": None, "megatron_core": "megatron.core",
    "rank_pattern": {}, "revision": None, "use_dora": False, "use_rslora": False,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "peft 0.3": PEFT_0_3,
    "peft 0.3, with what it merged": PEFT_0_3 | {"merge_weights": True, "enable_lora": None},
    "peft 0.10": PEFT_0_10,
    "of a patched model": PEFT_0_10
    | {"auto_mapping": {"base_model_class": "LlamaForCausalLM", "parent_library": "x", "unsloth_fixed": True}},
    "of another trainer": PEFT_0_10
    | {"modules_to_save": [], "lora_dtype": None, "lorap_lr_ratio": None, "lorap_emb_lr": 1e-06, "exclude_modules": []},
    "with a float": PEFT_0_10 | {"lora_alpha": 16.0},
    "as a pattern": PEFT_0_10
    | {"target_modules": r"^(?!.*visual).*(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj).*"},
}
"""Configs as they are published, by those who wrote them; all of them are a plain LoRA of everything."""


@pytest.fixture(scope="module")
def good(tiny: Callable[[str], TinyModel]) -> Path:
    return tiny("llama").adapters["all-r8"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_taken(good: Path, shape: ModelShape, tmp_path: Path, name: str) -> None:
    shutil.copy(good / WEIGHTS, tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED[name]))
    expected = pack_adapter(good, shape, "float32")

    packed = pack_adapter(tmp_path, shape, "float32")

    assert torch.equal(packed.data, expected.data)
    assert inspect_adapter(tmp_path, shape, 4).warnings == ()


scalars = some.one_of(
    some.none(), some.booleans(), some.integers(-9, 300), some.integers(), some.floats(),
    some.text(max_size=12), some.sampled_from(ALL),
    some.sampled_from(["all-linear", "none", "LORA", ".*", "(", "a{99999}", "\ud800", 10**400]),
)  # fmt: skip
values = some.recursive(
    scalars, lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=3)
)
fields = some.sampled_from(sorted(USED | set(NO_EFFECT) | set(REFUSED))) | some.text(max_size=8)


@fuzzing
@example(changes={"lora_alpha": 10**400}, gone=set())
@example(changes={"base_model_name_or_path": "\ud800"}, gone=set())
@example(changes={"target_modules": [*ALL, "x" * 100_000]}, gone=set())
@example(changes={"rank_pattern": {"\x1b[2J" * 100: 8}}, gone=set())
@given(changes=some.dictionaries(fields, values, max_size=3), gone=some.sets(fields, max_size=1))
def test_any_fields(good: Path, shape: ModelShape, changes: dict[str, Any], gone: set[str]) -> None:
    config = json.loads((good / CONFIG).read_text())
    config = {name: value for name, value in config.items() if name not in gone} | changes
    judge(good, shape, config=json.dumps(config).encode())


edits = some.lists(some.tuples(some.floats(0, 1), some.sampled_from(["flip", "cut", "insert", "double"]),
                               some.integers(1, 255)), min_size=1, max_size=4)  # fmt: skip


def edited(data: bytes, changes: list[tuple[float, str, int]], head: int) -> bytes:
    """Edits of the first `head` bytes, where the structure is."""
    changed = bytearray(data)
    for place, kind, value in changes:
        at = min(int(place * min(head, len(changed))), max(len(changed) - 1, 0))
        if kind == "flip" and changed:
            changed[at] ^= value
        elif kind == "cut":
            del changed[at : at + value]
        elif kind == "insert":
            changed[at:at] = bytes([value])
        else:
            changed[at:at] = changed[at : at + value]
    return bytes(changed)


@fuzzing
@given(changes=edits)
def test_any_bytes_of_the_config(good: Path, shape: ModelShape, changes: list[tuple[float, str, int]]) -> None:
    text = (good / CONFIG).read_bytes()
    judge(good, shape, config=edited(text, changes, len(text)))


@fuzzing
@given(changes=edits)
@example(changes=[(0.0, "flip", 1)])
@example(changes=[(0.0, "cut", 8)])
def test_any_bytes_of_the_weights(good: Path, shape: ModelShape, changes: list[tuple[float, str, int]]) -> None:
    data = (good / WEIGHTS).read_bytes()
    judge(good, shape, weights=edited(data, changes, 8 + int.from_bytes(data[:8], "little")))


entries = some.fixed_dictionaries(
    {},
    optional={
        "dtype": some.sampled_from(["F32", "F16", "BF16", "F64", "I8", "U8", "BOOL", "F8_E4M3", "F99"]) | scalars,
        "shape": some.lists(some.sampled_from([0, 1, 8, 64, 96, -1, 1 << 40, 1 << 63]), max_size=4) | scalars,
        "data_offsets": some.lists(some.integers(-8, 1 << 20) | some.sampled_from([0, 1 << 62]), max_size=3) | scalars,
    },
)


@fuzzing
@given(data=some.data())
def test_any_header(good: Path, shape: ModelShape, data: some.DataObject) -> None:
    header, body = take_apart((good / WEIGHTS).read_bytes())
    for name in data.draw(some.lists(some.sampled_from(sorted(header)), min_size=1, max_size=3, unique=True)):
        match data.draw(some.sampled_from(["change", "remove", "rename", "replace"])):
            case "change":
                header[name] = {**header[name], **data.draw(entries)}
            case "remove":
                del header[name]
            case "rename":
                header[data.draw(some.text() | some.sampled_from(sorted(header)))] = header.pop(name)
            case _:
                header[name] = data.draw(values)
    judge(good, shape, weights=assemble(header, body))


@fuzzing
@given(index=some.dictionaries(some.sampled_from(["weight_map", "metadata"]), values, max_size=2), text=some.binary())
def test_any_index(good: Path, shape: ModelShape, index: dict[str, Any], text: bytes) -> None:
    judge(good, shape, weights=None, index=text or json.dumps(index).encode())


def judge(
    good: Path, shape: ModelShape, config: bytes | None = None, weights: bytes | None = b"", index: bytes | None = None
) -> None:
    """Have the files packed; `weights` of no length are the good ones, None are absent."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / CONFIG).write_bytes((good / CONFIG).read_bytes() if config is None else config)
        if weights is not None:
            (folder / WEIGHTS).write_bytes(weights or (good / WEIGHTS).read_bytes())
        if index is not None:
            (folder / f"{WEIGHTS}.index.json").write_bytes(index)
        began = time.thread_time()
        reasons: tuple[str, ...] = ()
        try:
            packed = pack_adapter(folder, shape, "float32")
        except (BrokenAdapterError, UnsupportedAdapterError) as error:
            reasons = error.reasons
        else:
            facts = inspect_adapter(folder, shape, 4)
            assert (facts.bytes, facts.rank) == (packed.bytes, packed.rank)
            assert bool(torch.isfinite(packed.data).all())
            reasons = (*facts.warnings, *check_values(folder, shape, "float32"), "taken")
        assert time.thread_time() - began < SECONDS
    assert reasons
    assert len(reasons) <= 2 + len(REFUSED) + len(USED)
    assert all(reason.isprintable() and len(reason) <= MAX_REASON + 3 for reason in reasons)
