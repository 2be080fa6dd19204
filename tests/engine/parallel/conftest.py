"""One engine over several processes, and the same model over one."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lorafleet_engine.messages import LoopConfig, StepLimits
from tests.engine.support.driver import LoopDriver
from tests.engine.support.tiny import TinyModel

LIMITS = StepLimits(tokens=64, sequences=8)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LoopDriver]]:
    """Start a loop over so many processes; all of them end with the test."""
    with contextlib.ExitStack() as ending:

        def make(model: TinyModel, size: int, **settings: object) -> LoopDriver:
            given = {"max_model_len": 128, "memory_bytes": size * (32 << 20), "limits": LIMITS, **settings}
            chosen = LoopConfig(str(model.directory), tensor_parallel=size, **given)  # type: ignore[arg-type]
            driver = LoopDriver.start(chosen, tmp_path / f"blobs{size}")
            ending.callback(driver.core.close)
            return driver

        yield make
