"""Merging and checking on a CUDA device, with a small model that numpy makes: streams, threads and graphs are real."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from lorafleet_contracts.probe import PROBES
from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.messages import AdapterChecked, AdapterLoaded, LoopConfig, MergeConfig, Quantization, StepLimits
from lorafleet_engine.model.config import read_config
from lorafleet_engine.quality import merging
from lorafleet_engine.quality.probes import distance, engine_logits, usable_probes
from lorafleet_engine.server.tokenizer import BaseTokenizer
from tests.engine.support.driver import LoopDriver
from tests.support.tiny_model import AdapterRecipe, make_adapter, make_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("quality")
    make_model(made / "base")
    make_adapter(made / "adapter", AdapterRecipe(3, rank=5, config={"use_rslora": True}))
    return made


@pytest.fixture(scope="module")
def settings(folder: Path) -> LoopConfig:
    tokenizer = BaseTokenizer.load(folder / "base")
    probes = tuple(tokenizer.encode(text, add_special_tokens=True) for text in PROBES)
    limits = StepLimits(tokens=256, sequences=32)
    small = LoopConfig(str(folder / "base"), max_model_len=256, memory_bytes=1 << 30, limits=limits, probes=probes)
    return replace(small, device="cuda", dtype="bfloat16")


def test_merged(folder: Path, settings: LoopConfig, tmp_path: Path) -> None:
    shape = read_config(folder / "base").shape
    blob = pack_adapter(folder / "adapter", shape, "float32").write(tmp_path / "blob")
    core = merging.start_engine(replace(settings, merge=MergeConfig(blob)))
    assert core.parity is not None
    assert core.parity.merged <= 1.5 * core.parity.unmerged


def test_checked_beside_the_loop(folder: Path, settings: LoopConfig, tmp_path: Path) -> None:
    logits = []
    probes = usable_probes(settings.probes, 256)
    forms: tuple[Quantization, ...] = ("none", "fp8")
    for form in forms:
        driver = LoopDriver.start(replace(settings, quantization=form), tmp_path / form)
        assert isinstance(driver.load("u@d", folder / "adapter"), AdapterLoaded)
        logits.append(engine_logits(driver.core, probes, driver.core.residency.get("u@d")))
    expected = distance(logits[1], logits[0])
    found: list[AdapterChecked] = []
    deadline = time.monotonic() + 60
    while not found and time.monotonic() < deadline:
        driver.loop.turn()
        found = [message for message in driver.mailbox.outbox if isinstance(message, AdapterChecked)]
    assert found[0].quality.rel_l2 == pytest.approx(expected.rel_l2, rel=0.15)
    assert found[0].quality.positions == expected.positions
