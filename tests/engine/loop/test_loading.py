"""What may happen to a version while its bytes are on their way."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import (
    AdapterLoaded,
    AdapterRejected,
    AdapterUnloaded,
    BlobRef,
    FromLoop,
    LoadAdapter,
    Rejected,
    UnloadAdapter,
)
from lorafleet_engine.runner.copier import DirectCopier
from lorafleet_engine.versions import VersionKeeper
from tests.engine.loop.conftest import Ask
from tests.engine.support.driver import LoopDriver
from tests.engine.support.slow_copier import SlowCopier
from tests.engine.support.tiny import TinyModel


@dataclass
class Slowly:
    """A loop whose copies end when the test says so."""

    driver: LoopDriver
    now: float = 0.0

    def __post_init__(self) -> None:
        copier = SlowCopier(DirectCopier(self.driver.core.runner.pool), lambda: self.now, 1.0)
        self.driver.loop._versions = VersionKeeper(self.driver.core, lambda: self.now, copier)

    def end(self) -> list[FromLoop]:
        self.now += 10
        return self.driver.post()


@pytest.fixture
def slowly(driver: LoopDriver) -> Slowly:
    return Slowly(driver)


@pytest.fixture
def load(model: TinyModel, driver: LoopDriver, tmp_path: Path) -> LoadAdapter:
    blob = pack_adapter(model.adapters["all-r8"], driver.core.config.shape, "float32").write(tmp_path / "blob")
    return LoadAdapter("a@1", blob)


def news_of_versions(messages: Sequence[FromLoop]) -> list[FromLoop]:
    return [each for each in messages if isinstance(each, AdapterLoaded | AdapterRejected | AdapterUnloaded)]


def test_it_serves_nobody_before_it_is_there(slowly: Slowly, load: LoadAdapter, ask: Ask) -> None:
    driver = slowly.driver
    expected = driver.run([ask("base")])["base"].tokens
    assert not news_of_versions(driver.post(load))
    driver.post(ask("x", "a@1"))
    assert [version.phase for version in driver.state.versions] == ["loading"]
    assert [each.code for each in driver.mailbox.outbox if isinstance(each, Rejected)] == ["version_missing"]
    assert driver.run([ask("beside")])["beside"].tokens == expected, "steps do not wait for it"
    assert [type(each) for each in news_of_versions(slowly.end())] == [AdapterLoaded]
    assert driver.run([ask("y", "a@1")])["y"].finish == "length"


def test_asked_for_twice_it_is_answered_once(slowly: Slowly, load: LoadAdapter) -> None:
    assert not news_of_versions(slowly.driver.post(load, load))
    assert len(news_of_versions(slowly.end())) == 1
    assert len(news_of_versions(slowly.driver.post(load))) == 1, "it is there now"


def test_unloaded_meanwhile_it_goes_when_the_copy_has_ended(slowly: Slowly, load: LoadAdapter) -> None:
    driver = slowly.driver
    free = driver.core.pages.free
    assert not news_of_versions(driver.post(load, UnloadAdapter("a@1")))
    assert driver.core.pages.free < free, "the copy still writes to its pages"
    refused, gone = news_of_versions(slowly.end())
    assert isinstance(refused, AdapterRejected)
    assert refused.code == "draining"
    assert gone == AdapterUnloaded("a@1", load.blob.bytes)
    assert driver.core.pages.free == free


class CutShort(DirectCopier):
    """Somebody truncates the file between its opening and its copy."""

    def submit(self, resident: Resident, blob: BlobRef, file: int) -> None:
        os.truncate(blob.path, blob.bytes // 2)
        super().submit(resident, blob, file)


def test_a_file_that_is_cut_meanwhile_is_refused(driver: LoopDriver, load: LoadAdapter, ask: Ask) -> None:
    free = driver.core.pages.free
    driver.loop._versions = VersionKeeper(driver.core, copier=CutShort(driver.core.runner.pool))
    (refused,) = news_of_versions(driver.post(load))
    assert isinstance(refused, AdapterRejected)
    assert refused.code == "bad_blob"
    assert "shorter" in refused.message
    assert (driver.core.pages.free, driver.state.versions) == (free, ())
    assert driver.run([ask("base")])["base"].finish == "length"
