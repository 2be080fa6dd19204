"""Two and four processes answer as one does: every family, every kind of adapter, through the whole loop."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.errors import PeerLostError, UnsupportedModelError
from lorafleet_engine.loop import EngineLoop
from lorafleet_engine.messages import (
    AdapterLoaded,
    AdapterUnloaded,
    Generate,
    LoopConfig,
    MergeConfig,
    SamplingParams,
    UnloadAdapter,
)
from lorafleet_engine.model.config import read_config
from lorafleet_engine.parallel.gang import Gang
from lorafleet_engine.quality.checking import make_checker
from lorafleet_engine.quality.probes import distance, engine_logits
from tests.engine.support.driver import LoopDriver
from tests.engine.support.tiny import KINDS, VOCAB, TinyModel, make_model

Start = Callable[..., LoopDriver]
LAW = 1e-4
"""Largest difference of a logit in fp32."""
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "head_dim": 24},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "attention_bias": True},
}
SOME = ("all-r8", "odd-r5", "narrow-qv", "patterns")
PROMPTS = tuple(
    tuple(torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist())
    for length in (1, 17, 83)
)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., TinyModel]:
    """Make a small model that four processes can share."""

    def made(family: str, kinds: tuple[str, ...]) -> TinyModel:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft's, about module names
            wide = {"num_attention_heads": 8, "num_key_value_heads": 4}
            return make_model(tmp_path / family, {**FAMILIES[family], **wide}, kinds)

    return made


def load_all(driver: LoopDriver, model: TinyModel) -> None:
    for kind, files in model.adapters.items():
        assert isinstance(driver.load(kind, files), AdapterLoaded)


def ask(driver: LoopDriver, kinds: tuple[str | None, ...], params: SamplingParams) -> dict[str, list[int]]:
    requests = [Generate(f"{kind}/{n}", kind, prompt, params) for n, prompt in enumerate(PROMPTS) for kind in kinds]
    return {name: answer.tokens for name, answer in driver.run(requests).items()}


def logits(driver: LoopDriver, kind: str | None) -> torch.Tensor:
    """Prompts in chunks, then decodes, teacher-forced."""
    return engine_logits(driver.core, PROMPTS[1:], driver.core.residency.acquire(kind) if kind else None)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name == "qwen3" else pytest.mark.heavy) for name in FAMILIES]
)
def test_two_processes_are_one(family: str, make: Callable[..., TinyModel], start: Start) -> None:
    model = make(family, SOME)
    alone, both = start(model, 1), start(model, 2)
    for driver in (alone, both):
        load_all(driver, model)
    for kind in (None, *SOME):
        assert (logits(both, kind) - logits(alone, kind)).abs().max() <= LAW, kind
    greedy = SamplingParams(8, temperature=0)
    answers = ask(alone, (None, *SOME), greedy)
    assert ask(both, (None, *SOME), greedy) == answers
    assert len({tuple(answers[f"{kind}/2"]) for kind in (None, *SOME)}) == 1 + len(SOME)
    drawn = SamplingParams(8, temperature=1.5, seed=5)
    assert ask(both, (None, "all-r8"), drawn) == ask(alone, (None, "all-r8"), drawn)


@pytest.mark.heavy
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.heavy
def test_four_processes_are_one_with_every_kind(family: str, make: Callable[..., TinyModel], start: Start) -> None:
    model = make(family, tuple(KINDS))
    alone, four = start(model, 1, memory_bytes=64 << 20), start(model, 4, memory_bytes=256 << 20)
    greedy = SamplingParams(8, temperature=0)
    for driver in (alone, four):
        load_all(driver, model)
    for kind in (None, *KINDS):
        assert (logits(four, kind) - logits(alone, kind)).abs().max() <= LAW, kind
    assert ask(four, (None, *KINDS), greedy) == ask(alone, (None, *KINDS), greedy)


@pytest.mark.heavy
def test_bfloat16(make: Callable[..., TinyModel], start: Start) -> None:
    """As near to one process as the law says, and to fp32 as one process is."""
    model = make("qwen2", ("all-r8",))
    _calm_down(model)
    drivers = start(model, 1), start(model, 1, dtype="bfloat16"), start(model, 2, dtype="bfloat16")
    for driver in drivers:
        load_all(driver, model)
    for kind in (None, "all-r8"):
        truth, one, two = (logits(driver, kind).float() for driver in drivers)
        assert distance(two, one).rel_l2 <= 1e-2
        assert distance(two, truth).rel_l2 <= 1.25 * distance(one, truth).rel_l2


@pytest.mark.heavy
def test_a_rounded_base(make: Callable[..., TinyModel], start: Start) -> None:
    """Each share has scales of its own; adapters are checked as on one."""
    model = make("qwen2", ("all-r8",))
    _calm_down(model)
    fp8 = {"dtype": "bfloat16", "quantization": "fp8", "probes": PROMPTS[1:]}
    settings = ({"memory_bytes": 64 << 20}, fp8, fp8)
    exact, one, two = (start(model, size, **more) for size, more in zip((1, 1, 2), settings, strict=True))
    for driver in (exact, one, two):
        load_all(driver, model)
    for kind in (None, "all-r8"):
        truth = logits(exact, kind).float()
        assert distance(logits(two, kind), truth).rel_l2 <= 1.25 * distance(logits(one, kind), truth).rel_l2
    found = []
    for driver in (one, two):
        checker = make_checker(driver.core, LoopConfig(str(model.directory), **fp8))  # type: ignore[arg-type]
        assert checker is not None
        checker.want("all-r8")
        while not (answers := checker.poll()):
            assert checker.busy
        found.append(answers[0].quality)
    assert found[0] == found[1]


def _calm_down(model: TinyModel) -> None:
    for file in (model.directory / "model.safetensors", model.adapters["all-r8"] / "adapter_model.safetensors"):
        weights = {name: _calm(name, weight) for name, weight in load_file(file).items()}
        save_file(weights, file, metadata={"format": "pt"})


def _calm(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Weights as small as published ones: those of tiny models are so large that they magnify rounding."""
    return weight * 0.2 if "proj" in name else weight


@pytest.mark.heavy
def test_steps_that_overlap_find_the_tokens_that_were_drawn(make: Callable[..., TinyModel], start: Start) -> None:
    """Followers' next steps begin with tokens that only rank 0 has drawn."""
    model = make("mistral", ("all-r8",))
    drivers = start(model, 1), start(model, 2)
    drawn, answers = SamplingParams(12, temperature=2.0, seed=3), []
    for driver in drivers:
        load_all(driver, model)
        driver.loop = EngineLoop(driver.core, driver.mailbox, state_interval_s=0, overlapped=True)
        answers.append(ask(driver, (None, "all-r8"), drawn))
    assert answers[0] == answers[1]


@pytest.mark.heavy
def test_an_adapter_is_merged_by_every_process(make: Callable[..., TinyModel], start: Start, tmp_path: Path) -> None:
    model = make("llama-biases", ("patterns",))
    shape = read_config(model.directory).shape
    blob = pack_adapter(model.adapters["patterns"], shape, "float32").write(tmp_path / "merge")
    merged = start(model, 2, merge=MergeConfig(blob), probes=PROMPTS[1:])
    parity = merged.core.parity
    assert parity is not None
    assert 0 < parity.merged < 1e-5
    assert merged.core.residency.bytes == 0
    alone = start(model, 1)
    load_all(alone, model)
    assert (logits(merged, None) - logits(alone, "patterns")).abs().max() <= LAW


@pytest.mark.heavy
def test_matrices_are_collected(make: Callable[..., TinyModel], start: Start) -> None:
    """What the check of a rounded base reads."""
    model = make("qwen2", ("patterns",))
    alone, both = start(model, 1), start(model, 2)
    for driver in (alone, both):
        load_all(driver, model)
    resident = [driver.core.residency.get("patterns") for driver in (alone, both)]
    assert resident[0] is not None
    assert resident[1] is not None
    for layer in range(3):
        whole, collected = alone.core.matrices_of(resident[0], layer), both.core.matrices_of(resident[1], layer)
        assert whole.keys() == collected.keys()
        assert all(map(torch.equal, sum(whole.values(), ()), sum(collected.values(), ())))


@pytest.mark.heavy
def test_versions_come_and_go(make: Callable[..., TinyModel], start: Start) -> None:
    """The same pages and rows hold one version after another, on every device."""
    model = make("qwen3", ("all-r8", "odd-r5"))
    alone, both = start(model, 1), start(model, 2)
    core = both.core
    for kind in ("all-r8", "odd-r5", "all-r8"):
        for driver in (alone, both):
            loaded = driver.load("a", model.adapters[kind])
            assert isinstance(loaded, AdapterLoaded)
        assert loaded.bytes == core.residency.bytes < alone.core.residency.bytes
        assert (logits(both, "a") - logits(alone, "a")).abs().max() <= LAW
        for driver in (alone, both):
            resident = driver.core.residency.get("a")
            assert resident is not None
            driver.core.residency.release(resident)
            assert any(isinstance(news, AdapterUnloaded) for news in driver.post(UnloadAdapter("a")))
        assert core.residency.bytes == 0
        assert core.pages.free == core.pages.total


@pytest.mark.heavy
def test_a_broken_file_is_refused_by_all(make: Callable[..., TinyModel], start: Start, tmp_path: Path) -> None:
    """A follower that cannot read the file says so; the version is refused and its pages are free again."""
    model = make("llama", ("all-r8",))
    both = start(model, 2)
    gang = both.core.team
    assert isinstance(gang, Gang)
    copier = gang.copier(both.core.runner.pool, both.core.config.shape)
    blob = pack_adapter(model.adapters["all-r8"], both.core.config.shape, "float32").write(tmp_path / "blob")
    resident = both.core.residency.place("a", 1, both.core.geometry.pages_of(blob.module_ranks), blob.rank)
    file = os.open(blob.path, os.O_RDONLY)
    os.unlink(blob.path)
    copier.submit(resident, blob, file)
    while not (arrived := copier.poll()):
        assert copier.busy
    assert "rank 1" in arrived[0].error
    assert not copier.busy
    assert ask(both, (None,), SamplingParams(4, temperature=0)) == ask(
        start(model, 1), (None,), SamplingParams(4, temperature=0)
    )


def test_a_model_that_cannot_be_cut_is_refused(make: Callable[..., TinyModel], start: Start) -> None:
    with pytest.raises(UnsupportedModelError, match="tensorParallel 3 does not divide the base's 8 heads and 4 heads"):
        start(make("llama", ()), 3)


@pytest.mark.heavy
def test_a_step_without_a_follower_fails_at_once(make: Callable[..., TinyModel], start: Start) -> None:
    both = start(make("llama", ()), 2)
    gang = both.core.team
    assert isinstance(gang, Gang)
    gang.followers[0].process.kill()
    with pytest.raises(PeerLostError):
        ask(both, (None,), SamplingParams(4, temperature=0))


@pytest.mark.heavy
def test_followers_end_with_the_engine(make: Callable[..., TinyModel], start: Start) -> None:
    both = start(make("llama", ()), 2)
    gang = both.core.team
    assert isinstance(gang, Gang)
    both.core.close()
    assert gang.followers[0].process.returncode == 0
