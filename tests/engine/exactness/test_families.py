"""Every family and way of scaling positions that is served answers as transformers does: base and adapters."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lorafleet_contracts.capacity import weight_parameters
from lorafleet_engine.errors import UnsupportedModelError
from lorafleet_engine.messages import AdapterLoaded, Generate, LoopConfig, SamplingParams, StepLimits
from tests.engine.support.driver import LoopDriver
from tests.engine.support.exactness import Expected, difference, greedy
from tests.engine.support.tiny import VOCAB, TinyModel, make_model

LENGTH = 12
WINDOW = 128
PROMPTS = (1, 17, 83, WINDOW - LENGTH)
KINDS = ("all-r8", "patterns")
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5_000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64, "rope_theta": 10_000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10_000.0}
OLD_YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.2}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "qwen3-biases": {"model_type": "qwen3", "head_dim": 8, "attention_bias": True},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral-window": {"model_type": "mistral", "sliding_window": WINDOW, "head_dim": 24},
    "mistral-slides": {"model_type": "mistral", "sliding_window": 40, "head_dim": 24},
    "qwen2-window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": WINDOW},
    "qwen2-slides": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 33, "max_window_layers": 0},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "head_dim": 24, "num_key_value_heads": 1},
}
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"model_type": "llama", "rope_parameters": LINEAR},
    "llama3": {"model_type": "llama", "head_dim": 32, "rope_parameters": LLAMA3},
    "yarn": {"model_type": "qwen2", "rope_parameters": YARN},
    "old-yarn": {"model_type": "mistral", "sliding_window": None, "rope_theta": 1e6, "rope_scaling": OLD_YARN},
}


@dataclass(frozen=True)
class Case:
    """A model and its references' answers by (kind or None, prompt number)."""

    model: TinyModel
    prompts: list[tuple[int, ...]]
    expected: dict[tuple[str | None, int], Expected]

    def differences(self, blobs: Path, kinds: tuple[str | None, ...]) -> list[str]:
        """Ask a new engine for every prompt with every kind at once; return what breaks the margin rule."""
        driver = start(self.model, blobs)
        for kind in filter(None, kinds):
            assert isinstance(driver.load(kind, self.model.adapters[kind]), AdapterLoaded)
        sampling = SamplingParams(LENGTH, temperature=0, logprobs=0)
        keys = [(kind, number) for number in range(len(self.prompts)) for kind in kinds]
        answers = driver.run(
            Generate(f"{kind}/{number}", kind, self.prompts[number], sampling) for kind, number in keys
        )
        found = []
        for kind, number in keys:
            answer = answers[f"{kind}/{number}"]
            broken = difference(self.expected[kind, number], answer.tokens, answer.logprobs)
            found += [f"{kind}/{number} {broken}"] if broken else []
        return found


def start(model: TinyModel, blobs: Path) -> LoopDriver:
    limits = StepLimits(tokens=64, sequences=16)
    settings = LoopConfig(str(model.directory), max_model_len=WINDOW, memory_bytes=64 << 20, limits=limits)
    return LoopDriver.start(settings, blobs)


def make_case(root: Path, settings: dict[str, Any], kinds: tuple[str, ...]) -> Case:
    generator = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist()) for length in PROMPTS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_model(root, settings, kinds, shard_size="150KB")
        publish(model, settings)
        expected = {}
        for kind in (None, *kinds):
            reference = model.base() if kind is None else model.merged(kind)
            expected |= {(kind, n): answer for n, answer in enumerate(greedy(reference, prompts, LENGTH))}
    return Case(model, prompts, expected)


def publish(model: TinyModel, settings: dict[str, Any]) -> None:
    """Put `settings` into config.json as they are: transformers saves old layouts as the new one."""
    path = model.directory / "config.json"
    saved = json.loads(path.read_text())
    if "rope_scaling" in settings:
        saved.pop("rope_parameters", None)
    path.write_text(json.dumps(saved | settings))


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str, tmp_path: Path) -> None:
    case = make_case(tmp_path, FAMILIES[family], KINDS)
    assert (case.model.directory / "model.safetensors.index.json").exists()
    assert case.differences(tmp_path / "blobs", (None, *KINDS)) == []
    for kind in KINDS:
        answers = [(case.expected[kind, n], case.expected[None, n]) for n in range(len(PROMPTS))]
        assert all(adapted.tokens != plain.tokens for adapted, plain in answers)
    compared = [answer.compared for answer in case.expected.values()]
    assert sum(compared) >= 0.9 * LENGTH * len(compared)


@pytest.mark.parametrize("family", FAMILIES)
def test_planned_weights(family: str, tmp_path: Path) -> None:
    """What the planner reserves for weights is what the model has, to the parameter."""
    model = make_model(tmp_path, FAMILIES[family], ())
    shape = start(model, tmp_path / "blobs").core.config.shape
    assert weight_parameters(shape) == sum(weight.numel() for weight in model.base().parameters())


@pytest.mark.parametrize("scaling", SCALED)
def test_scaled_positions(scaling: str, tmp_path: Path) -> None:
    case = make_case(tmp_path, SCALED[scaling], ())
    assert case.differences(tmp_path / "blobs", (None,)) == []
    theta = start(case.model, tmp_path / "blobs").core.config.rope.theta
    publish(case.model, {"rope_scaling": {"type": "default", "rope_theta": theta}})
    assert case.differences(tmp_path / "blobs", (None,)), "the rule does not see whether positions are scaled"


def test_the_rule_sees_a_window(tmp_path: Path) -> None:
    """A window of some layers that is shorter than the sequences is refused, and rightly: windows change answers."""
    case = make_case(tmp_path, {"model_type": "mistral", "sliding_window": 64}, ())
    publish(case.model, {"layer_types": ["full_attention", "sliding_attention"]})
    with pytest.raises(UnsupportedModelError, match="sliding window of 64 tokens"):
        start(case.model, tmp_path / "blobs")
    publish(case.model, {"layer_types": None, "sliding_window": None})
    assert case.differences(tmp_path / "blobs", (None,))
