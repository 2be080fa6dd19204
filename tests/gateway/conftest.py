"""One running gateway for the tests of a module; each test finds its engines as they were."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gateway.doubles.engine import Mood
from tests.gateway.doubles.stack import Stack, run_stack, until


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with run_stack(tmp_path_factory.mktemp("gateway")) as running:
        await until(lambda: running.knows(2))
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def stack(shared: Stack) -> AsyncIterator[Stack]:
    for engine in shared.engines:
        engine.arrivals.clear()
        engine.cancelled.clear()
    yield shared
    for engine in shared.engines:
        engine.mood = Mood.ANSWER
        engine.gate.set()
