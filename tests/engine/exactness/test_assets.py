"""The same with the demo's real model and its trained adapters (`make assets`)."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from e2e.assets.locate import built_assets
from e2e.assets.recipes import load_lessons
from e2e.assets.styles import UNSEEN
from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.messages import AdapterLoaded, Generate, LoopConfig, MergeConfig, SamplingParams, StepLimits
from lorafleet_engine.model.config import read_config
from tests.engine.support.driver import LoopDriver
from tests.engine.support.exactness import Expected, difference, greedy

pytestmark = [pytest.mark.assets, pytest.mark.timeout(900)]

LENGTH = 16
END = 2
PROMPTS = 20
GREEDY = SamplingParams(LENGTH, temperature=0, logprobs=2)


@pytest.fixture(scope="module")
def assets() -> Path:
    return built_assets()


@pytest.fixture(scope="module")
def names(assets: Path) -> list[str]:
    return sorted(path.name for path in (assets / "adapters").iterdir())


@pytest.fixture(scope="module")
def prompts(assets: Path) -> list[tuple[int, ...]]:
    """Chat prompts as the api makes them, trained questions and unseen ones."""
    tokenizer = AutoTokenizer.from_pretrained(assets / "smollm2")
    questions = [*UNSEEN, *(lesson.question for lesson in load_lessons())][:PROMPTS]
    chats = [[{"role": "user", "content": question}] for question in questions]
    return [tuple(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)) for chat in chats]


@pytest.fixture(scope="module")
def driver(assets: Path, names: list[str], tmp_path_factory: pytest.TempPathFactory) -> LoopDriver:
    limits = StepLimits(tokens=256, sequences=24)
    settings = LoopConfig(str(assets / "smollm2"), max_model_len=256, memory_bytes=1 << 30, limits=limits)
    started = LoopDriver.start(settings, tmp_path_factory.mktemp("blobs"))
    for name in names:
        assert isinstance(started.load(name, assets / "adapters" / name), AdapterLoaded)
    return started


@pytest.fixture(scope="module")
def expected(assets: Path, names: list[str], prompts: list[tuple[int, ...]]) -> dict[tuple[str | None, int], Expected]:
    """peft's answers with each adapter merged, and the base's."""
    answers = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (None, *names):
            model = AutoModelForCausalLM.from_pretrained(assets / "smollm2", dtype=torch.float32).eval()
            if name is not None:
                model = PeftModel.from_pretrained(model, assets / "adapters" / name).merge_and_unload().eval()
            found = greedy(model, prompts, LENGTH, frozenset({END}))
            answers.update({(name, number): answer for number, answer in enumerate(found)})
    return answers


def test_every_adapter_on_every_prompt(
    driver: LoopDriver,
    expected: dict[tuple[str | None, int], Expected],
    prompts: list[tuple[int, ...]],
) -> None:
    requests = [Generate(f"{name}/{number}", name, prompts[number], GREEDY) for name, number in expected]
    answers = driver.run(requests)
    broken = {}
    for (name, number), reference in expected.items():
        answer = answers[f"{name}/{number}"]
        found = difference(reference, answer.tokens, answer.logprobs)
        if found:
            broken[name, number] = found
    assert len(prompts) >= 20
    assert broken == {}


def test_adapters_change_the_answers(expected: dict[tuple[str | None, int], Expected]) -> None:
    changed = [answer.tokens != expected[None, number].tokens for (name, number), answer in expected.items() if name]
    assert sum(changed) >= 0.8 * len(changed)


def test_sixteen_at_once_as_alone(driver: LoopDriver, names: list[str], prompts: list[tuple[int, ...]]) -> None:
    kinds = [*names[:6], None]
    requests = [Generate(str(n), kinds[n % 7], prompts[n], GREEDY) for n in range(16)]
    together = driver.run(requests)
    for request in requests:
        alone = driver.run([request])[request.request_id]
        reference = Expected(tuple(alone.tokens), tuple(alone.logprobs), tuple(alone.margins))
        answer = together[request.request_id]
        assert difference(reference, answer.tokens, answer.logprobs) is None


@pytest.mark.parametrize("name", ["json", "pirate"])
def test_merged_into_the_weights(
    assets: Path,
    expected: dict[tuple[str | None, int], Expected],
    prompts: list[tuple[int, ...]],
    tmp_path: Path,
    name: str,
) -> None:
    base = assets / "smollm2"
    blob = pack_adapter(assets / "adapters" / name, read_config(base).shape, "float32").write(tmp_path / "blob")
    limits = StepLimits(tokens=256, sequences=24)
    settings = LoopConfig(str(base), max_model_len=256, memory_bytes=1 << 30, limits=limits)
    settings = replace(settings, merge=MergeConfig(blob), probes=tuple(prompts))
    driver = LoopDriver.start(settings, tmp_path)
    answers = driver.run(Generate(str(number), None, prompt, GREEDY) for number, prompt in enumerate(prompts))
    for number in range(len(prompts)):
        answer = answers[str(number)]
        assert difference(expected[name, number], answer.tokens, answer.logprobs) is None
    assert driver.core.parity is not None
    assert driver.core.parity.same_argmax == 1
