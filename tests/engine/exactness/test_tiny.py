"""The engine's greedy answers are peft's: every kind of adapter, both families, mixed in the same steps."""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lorafleet_engine.messages import AdapterLoaded, Generate, LoopConfig, SamplingParams, StepLimits
from tests.engine.support.driver import Answer, LoopDriver
from tests.engine.support.exactness import Expected, difference, greedy
from tests.engine.support.tiny import KINDS, VOCAB, TinyModel

LENGTH = 16
ALL_KINDS = [*KINDS, "sharded", "bfloat16"]
GREEDY = SamplingParams(LENGTH, temperature=0, logprobs=0)


@dataclass(frozen=True)
class Trial:
    """One family: its references' answers by (kind or None, prompt number), and an engine with all adapters."""

    model: TinyModel
    prompts: list[tuple[int, ...]]
    expected: dict[tuple[str | None, int], Expected]
    driver: LoopDriver

    def requests(self, kind: str | None, as_kind: str | None = None) -> list[Generate]:
        """Ask with `kind`'s version under the name of `as_kind`."""
        name = as_kind or kind
        return [Generate(f"{name}/{n}", kind, prompt, GREEDY) for n, prompt in enumerate(self.prompts)]

    def differences(self, answers: dict[str, Answer]) -> dict[str, str]:
        """The requests that break the margin rule."""
        found = {}
        for (kind, number), expected in self.expected.items():
            name = f"{kind}/{number}"
            if name in answers:
                broken = difference(expected, answers[name].tokens, answers[name].logprobs)
                if broken:
                    found[name] = broken
        return found


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def trial(request: pytest.FixtureRequest, tiny: Callable[[str], TinyModel], tmp_path_factory: Any) -> Trial:
    model = tiny(request.param)
    generator = torch.Generator().manual_seed(1)
    prompts = [
        tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist()) for length in (1, 5, 16, 17, 40, 83)
    ]
    expected: dict[tuple[str | None, int], Expected] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in (None, *ALL_KINDS):
            reference = model.base() if kind is None else model.merged(kind)
            expected.update({(kind, n): answer for n, answer in enumerate(greedy(reference, prompts, LENGTH))})
    driver = start(model, tmp_path_factory.mktemp("blobs"))
    for kind, directory in model.adapters.items():
        assert isinstance(driver.load(kind, directory), AdapterLoaded)
    return Trial(model, prompts, expected, driver)


def start(model: TinyModel, blobs: Path) -> LoopDriver:
    limits = StepLimits(tokens=64, sequences=32)
    return LoopDriver.start(
        LoopConfig(str(model.directory), max_model_len=128, memory_bytes=64 << 20, limits=limits), blobs
    )


@pytest.mark.parametrize("kind", [None, *ALL_KINDS])
def test_alone_as_peft(trial: Trial, kind: str | None) -> None:
    answers = {}
    for request in trial.requests(kind):
        answers.update(trial.driver.run([request]))
    assert len(answers) == len(trial.prompts)
    assert trial.differences(answers) == {}


def test_all_at_once_as_peft(trial: Trial) -> None:
    requests = [request for kind in (None, *ALL_KINDS) for request in trial.requests(kind)]
    requests = requests[::3] + requests[1::3] + requests[2::3]
    answers = trial.driver.run(requests)
    assert len(answers) == len(trial.expected)
    assert trial.differences(answers) == {}
    assert trial.driver.state.step_adapters <= len(ALL_KINDS)


def test_the_rule_sees_something(trial: Trial) -> None:
    """Adapters change answers, and nearly all positions are compared."""
    pairs = {key: answer for key, answer in trial.expected.items() if key[0] is not None}
    changed = [answer.tokens != trial.expected[None, number].tokens for (_, number), answer in pairs.items()]
    assert sum(changed) >= 0.8 * len(changed)
    assert sum(answer.compared for answer in pairs.values()) >= 0.9 * LENGTH * len(pairs)


# Mutants: each of these is a plausible bug, and the rule must see it.


def mutated(trial: Trial, kind: str, tmp_path: Path, changes: dict[str, Any]) -> dict[str, str]:
    """Differences of an engine that reads `kind`'s adapter_config.json with `changes`."""
    directory = tmp_path / kind
    shutil.copytree(trial.model.adapters[kind], directory)
    path = directory / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    driver = start(trial.model, tmp_path / "blobs")
    assert isinstance(driver.load("mutant", directory), AdapterLoaded)
    return trial.differences(driver.run(trial.requests("mutant", as_kind=kind)))


def test_mutant_plain_scale_for_rslora(trial: Trial, tmp_path: Path) -> None:
    assert mutated(trial, "rslora", tmp_path, {"use_rslora": False})


def test_mutant_rank_pattern_ignored_in_the_scale(trial: Trial, tmp_path: Path) -> None:
    config = json.loads((trial.model.adapters["patterns"] / "adapter_config.json").read_text())
    alphas = {key: config["lora_alpha"] * rank / config["r"] for key, rank in config["rank_pattern"].items()}
    assert mutated(trial, "patterns", tmp_path, {"alpha_pattern": {**config["alpha_pattern"], **alphas}})


def test_mutant_alpha_pattern_ignored(trial: Trial, tmp_path: Path) -> None:
    assert mutated(trial, "patterns", tmp_path, {"alpha_pattern": {}})


@pytest.mark.parametrize(("kind", "neighbour"), [("all-r8", "odd-r5"), ("narrow-qv", "attention-r4")])
def test_mutant_neighbours_adapter(trial: Trial, kind: str, neighbour: str) -> None:
    assert trial.differences(trial.driver.run(trial.requests(neighbour, as_kind=kind)))


def test_mutant_base_instead_of_adapter(trial: Trial) -> None:
    assert trial.differences(trial.driver.run(trial.requests(None, as_kind="narrow-qv")))
