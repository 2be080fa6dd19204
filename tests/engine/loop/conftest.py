"""A fresh loop over the small model for each test."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from lorafleet_contracts.capacity import BaseDoesNotFitError
from lorafleet_engine.errors import DoesNotFitError
from lorafleet_engine.memory.budget import plan_engine_memory
from lorafleet_engine.memory.geometry import RESERVED_PAGES
from lorafleet_engine.messages import Generate, LoopConfig, SamplingParams, StepLimits
from tests.engine.support.driver import LoopDriver
from tests.engine.support.tiny import TinyModel

Ask = Callable[..., Generate]


@pytest.fixture(scope="session")
def model(tiny: Callable[[str], TinyModel]) -> TinyModel:
    return tiny("llama")


@pytest.fixture
def start(model: TinyModel, tmp_path: Path) -> Callable[..., LoopDriver]:
    """Start a loop with other limits or settings than usual."""

    def make(limits: StepLimits | None = None, overlapped: bool | None = None, **settings: object) -> LoopDriver:
        chosen = {"max_model_len": 128, "memory_bytes": 32 << 20, **settings}
        chosen["limits"] = limits or StepLimits(tokens=64, sequences=8)
        config = LoopConfig(str(model.directory), **chosen)  # type: ignore[arg-type]
        return LoopDriver.start(config, tmp_path / "blobs", overlapped)

    return make


@pytest.fixture
def memory_for() -> Callable[[LoopDriver, int], int]:
    """How many bytes a loop like the given one needs to have `pages` pages."""

    def search(like: LoopDriver, pages: int) -> int:
        core = like.core
        usable = core.plan.budget.weights
        while True:
            usable += core.geometry.page_bytes // 2
            with contextlib.suppress(BaseDoesNotFitError, DoesNotFitError):
                placement = core.placement
                plan = plan_engine_memory(
                    core.config.shape, core.geometry, placement.limits, placement.max_model_len, usable
                )
                if plan.pages - RESERVED_PAGES >= pages:
                    return usable

    return search


@pytest.fixture
def driver(start: Callable[..., LoopDriver]) -> LoopDriver:
    return start()


@pytest.fixture
def ask() -> Ask:
    """Make a request; params are those of SamplingParams, greedy by default."""

    def make(name: str, adapter: str | None = None, prompt: tuple[int, ...] = (5, 6, 7), **params: object) -> Generate:
        chosen = {"max_tokens": 8, "temperature": 0.0, **params}
        return Generate(name, adapter, prompt, SamplingParams(**chosen))  # type: ignore[arg-type]

    return make
