"""The leader rotates the port keys by itself, over HTTP on both sides, whoever is killed meanwhile."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from lorafleet_kube.access import load_access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_operator.core.port_keys import PREVIOUS, Period, PortKeys, Stage
from lorafleet_operator.errors import NotLeadingError
from lorafleet_operator.shell.lease import Lease
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.records import PodRecord
from lorafleet_operator.shell.rotation import rotated_at
from lorafleet_operator.shell.rotator import PATIENCE_SECONDS, EngineAsker, Rotator
from lorafleet_operator.shell.trust import Trust
from tests.support.fake_api import FakeApi, run_fake_api, run_in_thread
from tests.support.port_keys import OLD, PATH, UID, FollowingEngine, keys_of, put_keys

ADDRESSES = (f"127.{os.getpid() % 200 + 20}.11.{number}" for number in itertools.count(2))
STATE_PORT = 8001
DAY = 86400.0
AT_ONCE = Period(every=30 * DAY, quiet=0.0)


class FreeLease(Lease):
    """Held, unless the test says that it is lost."""

    lost = False

    def check(self) -> None:
        if self.lost:
            raise NotLeadingError("lost by the test")


@dataclass
class Leader:
    """One life of a leader after the other."""

    fake: FakeApi
    api: KubeApi
    session: aiohttp.ClientSession
    engine: FollowingEngine
    ip: str
    metrics: Metrics
    lease: FreeLease

    def live(self, period: Period = AT_ONCE, clock: Callable[[], float] = time.time) -> Rotator:
        pods = [
            PodRecord("smol-0", "pod-uid", ("demo", "smol"), self.ip, True, False, "rev", "", ""),
            PodRecord("smol-1", "pod-uid-1", ("demo", "smol"), "127.0.0.1", False, False, "rev", "", ""),
            PodRecord("odd-0", "pod-uid-2", ("demo", "gone"), "127.0.0.1", True, False, "rev", "", ""),
        ]
        asker = EngineAsker(self.session, Trust(), lambda: pods, {("demo", "smol"): UID}.get)
        return Rotator(self.api, self.lease, asker.ask, period, self.metrics, clock=clock)

    async def look(self, rotator: Rotator) -> Stage:
        await rotator.look(self.fake.objects[PATH])
        return keys_of(self.fake).stage

    @property
    def due(self) -> float:
        found = self.metrics.registry.get_sample_value("lorafleet_operator_port_keys_due_timestamp_seconds")
        assert found is not None
        return found

    @property
    def made(self) -> float:
        return rotated_at(self.fake.objects[PATH])

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(each["type"], each["reason"]) for each in self.fake.events]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeApi]:
    with run_fake_api(tmp_path) as running:
        put_keys(running, created="2020-01-01T00:00:00Z")
        yield running


@pytest.fixture
async def leader(fake: FakeApi) -> AsyncIterator[Leader]:
    app, engine, ip = web.Application(), FollowingEngine(fake), next(ADDRESSES)
    app.router.add_get("/metrics", engine.metrics)
    with run_in_thread(app, ip, STATE_PORT):
        async with connect(await load_access(str(fake.kubeconfig))) as api, aiohttp.ClientSession() as session:
            lease = FreeLease(api, ("ns", "lease"), "me", _nobody)
            yield Leader(fake, api, session, engine, ip, Metrics(), lease)


async def test_old_keys_are_rotated_though_every_leader_dies_after_one_look(leader: Leader) -> None:
    stages = [await leader.look(leader.live()) for _ in range(4)]
    assert stages == [Stage.OFFERED, Stage.REPLACED, Stage.RESTING, Stage.RESTING]
    keys = keys_of(leader.fake).by_entry
    assert keys.keys() == OLD.keys()
    assert not set(keys.values()) & set(OLD.values())
    assert leader.told == [("Normal", "PortKeysRotated")]
    assert leader.fake.events[0]["involvedObject"]["uid"] == "uid-keys"
    assert abs(leader.made - time.time()) < 3600
    assert leader.due == leader.made + 30 * DAY
    written = repr(leader.fake.objects[PATH]["metadata"]) + repr(leader.fake.events)
    assert not any(key.decode() in written for key in (*keys.values(), *OLD.values()))


async def test_young_keys_and_an_operator_without_a_period_are_left_alone(leader: Leader) -> None:
    assert await leader.look(leader.live(Period(None, 0.0))) is Stage.RESTING
    assert leader.due == 0
    made = leader.made
    young = leader.live(clock=lambda: made + 30 * DAY - 1)
    assert await leader.look(young) is Stage.RESTING
    assert leader.due == made + 30 * DAY
    assert keys_of(leader.fake).by_entry == OLD
    assert await leader.look(leader.live(clock=lambda: made + 30 * DAY)) is Stage.OFFERED


async def test_an_engine_that_has_not_heard_keeps_the_old_keys_and_is_named_in_time(leader: Leader) -> None:
    leader.engine.deaf, now = True, [time.time()]
    rotator = leader.live(clock=lambda: now[0])
    assert await leader.look(rotator) is Stage.OFFERED
    assert await leader.look(rotator) is Stage.OFFERED
    assert leader.told == []
    begun = leader.due
    assert abs(begun - time.time()) < 3600, "the rotation that goes on, not the next one"
    now[0] += PATIENCE_SECONDS + 1
    for _ in range(2):
        assert await leader.look(rotator) is Stage.OFFERED
    assert leader.told == [("Warning", "PortKeysWait")], "once in so long"
    assert "demo/smol-0" in leader.fake.events[0]["message"]
    assert leader.due == begun

    leader.engine.deaf = False
    assert await leader.look(rotator) is Stage.REPLACED


async def test_an_engine_that_is_away_counts_as_one_that_has_not_heard(leader: Leader) -> None:
    rotator = leader.live()
    assert await leader.look(rotator) is Stage.OFFERED
    leader.ip = next(ADDRESSES)
    assert await leader.look(leader.live()) is Stage.OFFERED


async def test_old_tokens_go_when_they_have_been_quiet_for_long_enough(leader: Leader) -> None:
    rotator = leader.live(Period(30 * DAY, quiet=0.3))
    leader.engine.late = 3
    stages = [await leader.look(rotator) for _ in range(3)]
    assert stages == [Stage.OFFERED, Stage.REPLACED, Stage.REPLACED]
    async with asyncio.timeout(20):
        while await leader.look(rotator) is not Stage.RESTING:
            assert PREVIOUS in "".join(keys_of(leader.fake).by_entry)
            await asyncio.sleep(0.05)
    assert leader.engine.late <= 0, "not before the old token's last use"


async def test_somebody_else_s_change_is_not_overwritten(leader: Leader) -> None:
    seen = leader.fake.objects[PATH]
    leader.fake.objects[PATH] = {**seen, "metadata": {**seen["metadata"], "resourceVersion": "8"}}
    await leader.live().look(seen)
    assert keys_of(leader.fake).by_entry == OLD


async def test_who_has_lost_the_lease_writes_nothing(leader: Leader) -> None:
    leader.lease.lost = True
    with pytest.raises(NotLeadingError):
        await leader.live().look(leader.fake.objects[PATH])
    assert keys_of(leader.fake) == PortKeys(OLD)


async def _nobody() -> list[dict[str, object]]:
    return []
