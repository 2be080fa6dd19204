"""Names and patterns of adapter_config.json mean what they mean in peft: both read the same random configs."""

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.adapters.config import read_settings
from lorafleet_engine.adapters.patterns import Patience, ValuePattern
from lorafleet_engine.adapters.peft import module_path
from lorafleet_engine.errors import BrokenAdapterError, UnsupportedAdapterError
from tests.support.cases import cases

PATHS = [module_path(layer, module) for layer in (0, 1, 2, 10, 21) for module in PROJECTIONS]
ENDS = [*PROJECTIONS, "self_attn.q_proj", "mlp.up_proj", "1.mlp.up_proj", "proj", "layers.2.self_attn.o_proj"]
PATTERNS = [
    r".*\.[qk]_proj", r"model\.layers\.(1|2)\..*", ".*", "q_proj", r".*layers\.\d\.mlp\.(up|down)_proj", "a|b", "",
    r"model\.layers\.1[0-9]?\.mlp\..*|.*v_proj", r"(?i).*Q_PROJ", r".*(?<!k)_proj", "^model.layers.2.mlp.up_proj",
]  # fmt: skip
names = some.lists(some.sampled_from(ENDS + PATHS), min_size=1, max_size=4)
layers = some.one_of(some.none(), some.sampled_from(PATHS).map(lambda path: int(path.split(".")[2])),
                     some.lists(some.integers(0, 22), max_size=3))  # fmt: skip
configs = some.fixed_dictionaries(
    {
        "target_modules": some.one_of(names, some.sampled_from(PATTERNS)),
        "exclude_modules": some.one_of(some.none(), names, some.sampled_from(PATTERNS)),
        "layers_to_transform": layers,
        "layers_pattern": some.sampled_from([None, "", "layers", "h", ["h", "layers"], [], "lay.rs"]),
    }
)


def read(config: dict[str, Any]) -> Any:
    """Our settings of a config, or None where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        plain = {"peft_type": "LORA", "r": 8, "lora_alpha": 16}
        Path(folder, "adapter_config.json").write_text(json.dumps(plain | config))
        try:
            return read_settings(Path(folder))
        except (BrokenAdapterError, UnsupportedAdapterError):
            return None


@settings(max_examples=cases(150), deadline=None)
@given(config=configs)
def test_the_same_modules_as_in_peft(config: dict[str, Any]) -> None:
    ours = read(config)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = LoraConfig(r=8, lora_alpha=16, **config)
    except ValueError:
        assert ours is None
        return
    expected = [path for path in PATHS if bool(check_target_module_exists(theirs, path))]
    outside = [path for path in ("lm_head", "model.embed_tokens") if check_target_module_exists(theirs, path)]
    if outside or config["target_modules"] == "":
        assert ours is None
    else:
        assert ours is not None
        assert [path for path in PATHS if ours.targeted(path)] == expected


KEYS = [
    *PROJECTIONS, "proj", ".*_proj", "up|down_proj", r"layers\.\d\.mlp\.\w+", "^model.layers.2.mlp.up_proj",
    "self_attn.q_proj", "model.layers.1.self_attn.v_proj", r".*\.1\..*", ".", "", "(q)_proj", "a|b_proj",
]  # fmt: skip


@settings(max_examples=cases(60), deadline=None)
@given(keys=some.lists(some.sampled_from(KEYS), unique=True, max_size=5))
def test_the_same_keys_as_in_peft(keys: list[str]) -> None:
    ours = ValuePattern({key: key for key in keys}, Patience())
    for path in PATHS:
        assert ours.value_of(path, path) == get_pattern_key(keys, path)
    hit = {get_pattern_key([key], path) for key in keys for path in PATHS}
    assert set(ours.idle_keys(PATHS)) == set(keys) - hit


def test_all_patterns_together_have_a_limit() -> None:
    pattern = ValuePattern({f"(?:.*a){{1,6}}{number}": 1 for number in range(500)}, Patience(0.02))
    with pytest.raises(UnsupportedAdapterError, match="together"):
        pattern.idle_keys(PATHS)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rank_pattern": dict.fromkeys(map(str, range(2_001)), 8)}, "more than 2000"),
        ({"rank_pattern": {"a" * 1_001: 8}}, "longer than 1000"),
        ({"target_modules": "a" * 1_001}, "longer than 1000"),
        ({"target_modules": "(" * 50}, "no regular expression"),
        ({"target_modules": ["q_proj"] * 2_001}, "at most 2000"),
        ({"target_modules": None}, "target_modules is missing"),
        ({"target_modules": [1]}, "strings"),
        ({"target_modules": {"q_proj": 1}}, "strings"),
        ({"exclude_modules": 5}, "strings"),
        ({"rank_pattern": ["q_proj"]}, "an object"),
        ({"rank_pattern": {"q_proj": 1.5}}, "positive integer"),
        ({"rank_pattern": {"q_proj": True}}, "positive integer"),
        ({"alpha_pattern": {"q_proj": "8"}}, "a number"),
        ({"lora_alpha": None}, "a number"),
        ({"lora_alpha": True}, "a number"),
        ({"use_rslora": "false"}, "true or false"),
        ({"layers_to_transform": ["1"]}, "integers"),
        ({"layers_to_transform": True}, "integers"),
        ({"layers_pattern": "layers"}, "needs layers_to_transform"),
        ({"layers_to_transform": [0], "target_modules": "all-linear"}, "to be a list"),
        ({"base_model_name_or_path": "x" * 513}, "512 characters"),
        ({"base_model_name_or_path": ["x"]}, "512 characters"),
    ],
)
def test_what_is_no_config(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    plain = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(plain | config))
    with pytest.raises(BrokenAdapterError, match=words) as caught:
        read_settings(tmp_path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"r": 8, "r": 16}', "the key 'r' is there twice"),
        (b'{"r": 8, "rank_pattern": {"a": 1, "a": 2}}', "twice"),
        (b'{"lora_alpha": NaN}', "NaN is no JSON"),
        (b'{"lora_alpha": -Infinity}', "Infinity is no JSON"),
        (b'{"peft_type": "LORA", "target_modules": "x", "r": 8, "lora_alpha": 1e999}', "a number"),
        (b'{"peft_type": "LORA", "target_modules": "x", "r": 8, "lora_alpha": 1' + b"0" * 400 + b"}", "cannot be used"),
        (b'{"r": 1' + b"0" * 5000 + b"}", "cannot be used"),
        (b'{"base_model_name_or_path": "\\ud800"}', "surrogates"),
        (b'{"a": ' + b"[" * 200_000, "nested too deeply"),
        (b'\xff\xfe{"r": 8}', "decode"),
        (b'"LORA"', "not a JSON object"),
        (b"", "cannot be used"),
    ],
)
def test_what_is_no_json(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "adapter_config.json").write_bytes(text)
    with pytest.raises(BrokenAdapterError, match=words):
        read_settings(tmp_path)
