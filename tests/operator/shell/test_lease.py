"""Two contenders for one Lease, over HTTP, with clocks of the test's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from lorafleet_kube.access import Access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_operator.errors import NotLeadingError
from lorafleet_operator.shell.lease import Lease, LeaseTimes

TIMES = LeaseTimes(duration=15, deadline=10, retry=0.01)
PATH = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


@dataclass
class LeaseServer:
    """Holds one Lease as an API server does: versions, conflicts, outages."""

    lease: dict[str, Any] | None = None
    version: int = 0
    down: bool = False
    asked: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(request.method)
        if self.down:
            return web.Response(status=503, text="{}")
        if request.method == "GET":
            return web.json_response(self.lease) if self.lease else web.Response(status=404, text="{}")
        body = orjson.loads(await request.read())
        seen = body["metadata"].get("resourceVersion")
        if (self.lease is None) != (request.method == "POST") or (seen is not None and seen != str(self.version)):
            return web.Response(status=409, text="{}")
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return web.json_response(self.lease)


@dataclass
class Clock:
    """A monotonic clock that only the test moves."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Contender:
    """A Lease with a clock of its own."""

    api: KubeApi
    name: str
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.lease = Lease(self.api, ("ns", "lease"), self.name, _owners, times=TIMES, clock=self.clock)

    async def tries(self) -> bool:
        """Whether it leads after a moment of trying."""
        acquiring = asyncio.create_task(self.lease.acquire())
        await asyncio.wait([acquiring], timeout=0.3)
        acquiring.cancel()
        return self.lease.valid


async def _owners() -> list[dict[str, Any]]:
    return []


@asynccontextmanager
async def running(server: LeaseServer) -> AsyncIterator[KubeApi]:
    app = web.Application()
    app.router.add_route("*", PATH, server.handle)
    app.router.add_route("*", f"{PATH}/lease", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with connect(Access(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"))) as api:
            yield api
    finally:
        await runner.cleanup()


@pytest.fixture
async def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
async def api(server: LeaseServer) -> AsyncIterator[KubeApi]:
    async with running(server) as connection:
        yield connection


async def test_the_wait_for_a_dead_holder_begins_with_the_first_look(server: LeaseServer, api: KubeApi) -> None:
    """A new process fills its caches first; if the holder lives, it has renewed by then, and the wait begins anew."""
    first, second = Contender(api, "first"), Contender(api, "second")
    assert await first.tries()
    await second.lease.look()
    second.clock.now += 16
    assert await second.tries()
    await first.lease.look()
    assert server.lease is not None
    server.lease["spec"]["renewTime"] = "renewed"
    first.clock.now += 16
    assert not await first.tries()


async def test_a_look_at_a_server_that_is_away_is_no_failure(server: LeaseServer, api: KubeApi) -> None:
    server.down = True
    await Contender(api, "first").lease.look()


async def test_the_first_leads_and_the_second_waits_its_whole_duration(api: KubeApi) -> None:
    first, second = Contender(api, "first"), Contender(api, "second")
    assert await first.tries()
    first.lease.check()
    assert not await second.tries()
    with pytest.raises(NotLeadingError):
        second.lease.check()
    second.clock.now += TIMES.duration - 0.1
    assert not await second.tries()
    second.clock.now += 0.2
    assert await second.tries()
    assert not await first.tries(), "the first learns it as soon as it looks"


async def test_a_leader_that_cannot_renew_stops_before_another_may_start(api: KubeApi, server: LeaseServer) -> None:
    leader = Contender(api, "leader")
    assert await leader.tries()
    server.down = True
    holding = asyncio.create_task(leader.lease.hold())
    leader.clock.now += TIMES.deadline - 0.1
    await asyncio.sleep(0.05)
    assert leader.lease.valid
    leader.clock.now += 0.2
    assert not leader.lease.valid
    await asyncio.wait_for(holding, 5)
    server.down = False
    assert not await leader.tries(), "a lost Lease is never had again"


async def test_renewals_keep_it(api: KubeApi) -> None:
    leader, other = Contender(api, "leader"), Contender(api, "other")
    assert await leader.tries()
    holding = asyncio.create_task(leader.lease.hold())
    for _ in range(5):
        leader.clock.now += 5
        other.clock.now += 5
        await asyncio.sleep(0.1)
        assert leader.lease.valid
        assert not await other.tries()
    holding.cancel()


async def test_a_renewal_is_one_call_until_somebody_else_has_written(api: KubeApi, server: LeaseServer) -> None:
    leader = Contender(api, "leader")
    assert await leader.tries()
    holding = asyncio.create_task(leader.lease.hold())
    await asyncio.sleep(0.1)
    assert server.asked.count("GET") == 1
    assert server.asked.count("PUT") > 1
    assert server.lease is not None
    server.version += 1
    server.lease["metadata"] |= {"resourceVersion": str(server.version), "labels": {"a": "b"}}
    leader.clock.now += 9.0
    await asyncio.sleep(0.1)
    leader.clock.now += 9.0
    assert leader.lease.valid
    assert server.asked.count("GET") == 2
    assert server.lease["metadata"]["labels"] == {"a": "b"}
    server.lease["spec"]["holderIdentity"] = "intruder"
    server.version += 1
    server.lease["metadata"]["resourceVersion"] = str(server.version)
    await asyncio.wait_for(holding, 5)
    assert not leader.lease.valid
    assert server.lease["spec"]["holderIdentity"] == "intruder"


async def test_a_released_lease_is_taken_at_once(api: KubeApi, server: LeaseServer) -> None:
    leader, other = Contender(api, "leader"), Contender(api, "other")
    assert await leader.tries()
    await other.lease.release()  # not its own: nothing happens
    assert not await other.tries()
    await leader.lease.release()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == ""
    assert await other.tries()
    assert server.lease["spec"]["leaseTransitions"] == 2


async def test_a_deleted_lease_is_still_its_last_holders(api: KubeApi, server: LeaseServer) -> None:
    leader, other = Contender(api, "leader"), Contender(api, "other")
    assert await leader.tries()
    assert not await other.tries()
    server.lease = None
    assert not await other.tries()
    assert await leader.tries(), "the holder makes it anew"


async def test_of_two_that_race_one_wins(api: KubeApi) -> None:
    both = [Contender(api, "a"), Contender(api, "b")]
    assert sorted(await asyncio.gather(*(each.tries() for each in both))) == [False, True]


@pytest.mark.parametrize("written", ["1999-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
async def test_the_holders_wall_clock_decides_nothing(api: KubeApi, server: LeaseServer, written: str) -> None:
    """A clock that jumped says nothing of how old a renewal is: only the time since it was seen counts."""
    leader, other = Contender(api, "leader"), Contender(api, "other")
    assert await leader.tries()
    assert server.lease is not None
    server.lease["spec"]["renewTime"] = written
    assert not await other.tries()
    assert leader.lease.valid
    other.clock.now += TIMES.duration + 0.1
    assert await other.tries()
