"""On a base rounded to 8 bits every adapter is checked beside the traffic, against the same base unrounded."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.memory.pages import Owner
from lorafleet_engine.messages import (
    AdapterChecked,
    AdapterLoaded,
    Generate,
    LoopConfig,
    Quality,
    SamplingParams,
    StepLimits,
    UnloadAdapter,
)
from lorafleet_engine.model.merged import of_layer, unpack_blob
from lorafleet_engine.quality.probes import distance, engine_logits
from tests.engine.support.driver import LoopDriver
from tests.engine.support.tiny import VOCAB, TinyModel

DRAW = torch.Generator().manual_seed(8)
PROBES = tuple(tuple(torch.randint(0, VOCAB, (length,), generator=DRAW).tolist()) for length in range(6, 50, 4))
LIMITS = StepLimits(tokens=64, sequences=8)


def settings_for(model: TinyModel) -> LoopConfig:
    settings = LoopConfig(str(model.directory), max_model_len=64, memory_bytes=64 << 20, limits=LIMITS, probes=PROBES)
    return replace(settings, quantization="fp8")


def checks(driver: LoopDriver, count: int) -> list[AdapterChecked]:
    """Turn until so many answers are there."""
    for _ in range(10_000):
        found = [message for message in driver.mailbox.outbox if isinstance(message, AdapterChecked)]
        if len(found) >= count:
            return found
        driver.loop.turn()
        time.sleep(0.001)
    raise AssertionError("no answer")


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_says_what_two_engines_say(tiny: Callable[[str], TinyModel], tmp_path: Path, family: str) -> None:
    model, kind = tiny(family), "patterns"
    rounded = LoopDriver.start(settings_for(model), tmp_path / "a")
    exact = LoopDriver.start(replace(settings_for(model), quantization="none"), tmp_path / "b")
    logits = []
    for driver in (rounded, exact):
        assert isinstance(driver.load("u@d", model.adapters[kind]), AdapterLoaded)
        logits.append(engine_logits(driver.core, PROBES, driver.core.residency.get("u@d")))
    expected = distance(*logits)
    (checked,) = checks(rounded, 1)
    assert checked.key == "u@d"
    assert 0.01 < expected.rel_l2 < 0.5
    assert checked.quality.rel_l2 == pytest.approx(expected.rel_l2, rel=0.1)
    assert checked.quality.same_argmax == pytest.approx(expected.same_argmax, abs=0.05)
    assert checked.quality.positions == 5 * len(PROBES)
    for _ in range(20):
        exact.loop.turn()
    assert not [message for message in exact.mailbox.outbox if isinstance(message, AdapterChecked)]


def test_beside_traffic_and_once_a_digest(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    driver = LoopDriver.start(settings_for(tiny("llama")), tmp_path)
    adapter = tiny("llama").adapters["odd-r5"]
    sampling = SamplingParams(40, temperature=0)
    alone = driver.run([Generate("a", None, (1, 2, 3), sampling)])["a"].tokens
    driver.load("one@d", adapter)
    assert driver.run([Generate("b", None, (1, 2, 3), sampling)])["b"].tokens == alone
    first = checks(driver, 1)[0].quality
    assert driver.core.pages.held(Owner.KV) == 0
    driver.load("two@d", adapter)
    turns = len(driver.mailbox.outbox)
    driver.loop.turn()
    again = [m for m in driver.mailbox.outbox[turns - 2 :] if isinstance(m, AdapterChecked)]
    assert [(m.key, m.quality) for m in again] == [("two@d", first)]


def test_a_version_that_goes_is_forgotten(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    model = tiny("llama")
    driver = LoopDriver.start(settings_for(model), tmp_path)
    driver.load("gone@d1", model.adapters["all-r8"])
    driver.post(UnloadAdapter("gone@d1"))
    driver.load("stays@d2", model.adapters["odd-r5"])
    assert [checked.key for checked in checks(driver, 1)] == ["stays@d2"]
    assert isinstance(checks(driver, 1)[0].quality, Quality)


def test_matrices_are_read_back(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    model = tiny("llama")
    driver = LoopDriver.start(settings_for(model), tmp_path / "blobs")
    shape = driver.core.config.shape
    packed = pack_adapter(model.adapters["patterns"], shape, "float32")
    driver.load("u@d", model.adapters["patterns"])
    resident = driver.core.residency.get("u@d")
    assert resident is not None
    whole = unpack_blob(packed.data, packed.module_ranks, shape)
    for layer in range(shape.layers):
        found = driver.core.runner.pool.matrices_of(resident, layer)
        for module, pair in of_layer(whole, layer).items():
            for got, wanted in zip(found[module], pair, strict=True):
                assert torch.equal(got[: len(wanted)], wanted)
                assert not bool(got[len(wanted) :].any())
