"""Cold adapters that are asked for together begin together; warm requests wait for none of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.loop import EngineLoop
from lorafleet_engine.messages import AdapterLoaded, FromLoop, Generate, LoadAdapter
from lorafleet_engine.runner.copier import DirectCopier
from lorafleet_engine.versions import VersionKeeper
from tests.engine.loop.conftest import Ask
from tests.engine.support.driver import LoopDriver, collect
from tests.engine.support.slow_copier import SlowCopier
from tests.engine.support.tiny import TinyModel

LOAD_MS, STEP_MS, TURN_MS = 2.0, 20.0, 0.1


class Clocked:
    """A loop whose steps take STEP_MS, and an api that sends a version's requests once it is loaded."""

    def __init__(self, driver: LoopDriver) -> None:
        self.driver, self.ms, self.steps = driver, 0.0, 0
        driver.loop = EngineLoop(driver.core, driver.mailbox, 0, clock=lambda: self.ms / 1e3)
        copier = SlowCopier(DirectCopier(driver.core.runner.pool), lambda: self.ms / 1e3, LOAD_MS / 1e3)
        driver.loop._versions = VersionKeeper(driver.core, lambda: self.ms / 1e3, copier)

    def run(self, loads: Sequence[LoadAdapter], requests: Sequence[Generate]) -> dict[str, float]:
        """Milliseconds until each request's first token."""
        first: dict[str, float] = {}
        inbox: list[LoadAdapter | Generate] = [*loads, *(each for each in requests if each.adapter is None)]
        while len(first) < len(requests):
            news = self.driver.post(*inbox)
            stepped = self.driver.state.counters.steps != self.steps
            self.steps = self.driver.state.counters.steps
            self.ms += STEP_MS if stepped else TURN_MS
            first |= {name: self.ms for name in self._answered(news) if name not in first}
            loaded = {each.key for each in news if isinstance(each, AdapterLoaded)}
            inbox = [each for each in requests if each.adapter in loaded]
            assert self.ms < 1000
        return first

    def _answered(self, news: Sequence[FromLoop]) -> list[str]:
        return [name for name, answer in collect(news).items() if answer.tokens]


@pytest.fixture
def clocked(driver: LoopDriver) -> Clocked:
    return Clocked(driver)


@pytest.fixture
def loads(driver: LoopDriver, model: TinyModel, tmp_path: Path) -> list[LoadAdapter]:
    blob = pack_adapter(model.adapters["all-r8"], driver.core.config.shape, "float32").write(tmp_path / "blob")
    return [LoadAdapter(f"v@{number}", blob) for number in range(4)]


def test_four_loads_of_2_ms_and_prefills_of_20_end_within_30(
    clocked: Clocked, loads: list[LoadAdapter], ask: Ask
) -> None:
    first = clocked.run(loads, [ask(load.key, load.key) for load in loads])
    assert max(first.values()) <= 30


def test_a_warm_request_waits_for_no_load(clocked: Clocked, loads: list[LoadAdapter], ask: Ask) -> None:
    first = clocked.run(loads, [ask("warm"), *(ask(load.key, load.key) for load in loads)])
    assert first["warm"] <= STEP_MS + TURN_MS


def test_one_alone_begins_at_once(clocked: Clocked, loads: list[LoadAdapter], ask: Ask) -> None:
    first = clocked.run(loads[:1], [ask("one", loads[0].key)])
    assert first["one"] <= LOAD_MS + STEP_MS + 3 * TURN_MS


def test_nobody_waits_longer_than_a_moment(clocked: Clocked, loads: list[LoadAdapter], ask: Ask) -> None:
    many = [LoadAdapter(f"w@{number}", loads[0].blob) for number in range(20)]
    first = clocked.run(many, [ask("one", many[0].key)])
    assert first["one"] <= LOAD_MS + 8 + STEP_MS + 3 * TURN_MS
