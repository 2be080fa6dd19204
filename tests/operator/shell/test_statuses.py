"""The queue of statuses against an API server on loopback that takes its time and says no when told to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_kube.access import Access
from lorafleet_kube.api import connect
from lorafleet_kube.errors import ApiError
from lorafleet_operator.core.actions import StatusWrite
from lorafleet_operator.errors import NotLeadingError
from lorafleet_operator.shell.cluster import Cluster
from lorafleet_operator.shell.kinds import LORA_ADAPTERS
from lorafleet_operator.shell.lease import Lease
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.statuses import WRITERS, StatusDesk, StatusQueue
from lorafleet_operator.shell.watches import Watches


class Deaf:
    """A listener that needs to hear nothing."""

    def pool_touched(self, pool: tuple[str, str]) -> None: ...

    def all_touched(self) -> None: ...

    def pod_changed(self, old: object, new: object) -> None: ...


class SlowServer:
    """Takes statuses of adapters once `gate` is open; `answer` is the status of its answers."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.written: list[tuple[str, int]] = []
        self.answer = 200
        self.poison = ""
        self.tries = 0
        self.revision = 10

    async def watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if request.path.endswith("/loraadapters"):
            for number in range(40):
                await response.write(web.json_response({"type": "ADDED", "object": self.item(f"a{number}")}).body)
                await response.write(b"\n")
        end = {"resourceVersion": "10", "annotations": {"k8s.io/initial-events-end": "true"}}
        await response.write(web.json_response({"type": "BOOKMARK", "object": {"metadata": end}}).body + b"\n")
        await asyncio.sleep(60)
        return response

    async def patch(self, request: web.Request) -> web.Response:
        body = await request.json()
        await self.gate.wait()
        if self.answer != 200:
            return web.json_response({"code": self.answer, "reason": "No", "message": "no"}, status=self.answer)
        name = request.match_info["name"]
        self.tries += name == self.poison
        if name == self.poison:
            return web.json_response({"code": 422, "reason": "Invalid", "message": "no"}, status=422)
        self.written.append((name, body["status"]["rank"]))
        self.revision += 1
        return web.json_response(self.item(name, self.revision) | {"status": body["status"]})

    def item(self, name: str, revision: int = 1) -> dict[str, object]:
        meta = {"namespace": "ns", "name": name, "uid": name, "generation": 1, "resourceVersion": str(revision)}
        spec = {"poolRef": {"name": "smol"}, "source": {"uri": "http://assets/a"}}
        return {"metadata": meta, "spec": spec}


class Fence(Lease):
    """A Lease whose fence the test opens and closes."""

    open = True

    def check(self) -> None:
        if not self.open:
            raise NotLeadingError("closed by the test")


@asynccontextmanager
async def serving(server: SlowServer) -> AsyncIterator[tuple[StatusDesk, Fence]]:
    app = web.Application()
    app.router.add_patch(LORA_ADAPTERS.path("ns", "{name}", "status"), server.patch)
    app.router.add_get("/{path:.*}", server.watch)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    async with connect(Access(configuration)) as api:
        watches = Watches(api, ["ns"], Deaf())
        watching = asyncio.create_task(watches.run())
        await watches.wait_synced()
        fence = Fence(api, ("ns", "lease"), "me", _nobody)
        yield StatusDesk(Cluster(api, fence), watches, Metrics()), fence
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await runner.cleanup()


async def _nobody() -> list[dict[str, object]]:
    return []


def status(name: str, rank: int) -> StatusWrite:
    """A status that can be told from others by its rank."""
    return StatusWrite("LoraAdapter", "ns", name, name, LoraAdapterStatus(rank=rank))


@pytest.fixture
def server() -> SlowServer:
    return SlowServer()


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await event.wait()
    event.clear()


async def test_what_was_not_written_is_replaced_and_what_is_being_written_is_not_written_twice(
    server: SlowServer,
) -> None:
    done = asyncio.Event()
    async with serving(server) as (desk, _):
        queue = StatusQueue(desk, done.set)
        queue.start_plan()
        queue.want([status(f"a{number}", 1) for number in range(40)])
        await asyncio.sleep(0.2)
        queue.start_plan()  # some are on their way now; the next plan knows nothing of their outcome
        queue.want([status(f"a{number}", 2) for number in range(40)])
        server.gate.set()
        await until(done)
        first = [name for name, rank in server.written if rank == 1]
        assert len(first) == WRITERS
        assert sorted(name for name, _ in server.written) == sorted(f"a{number}" for number in range(40))
        queue.start_plan()
        queue.want([status(name, 2) for name in first])
        await until(done)
        assert sorted(name for name, rank in server.written if rank == 2) == sorted(
            f"a{number}" for number in range(40)
        )


async def test_a_write_while_the_plan_was_made_is_not_repeated(server: SlowServer) -> None:
    done = asyncio.Event()
    async with serving(server) as (desk, _):
        queue = StatusQueue(desk, done.set)
        queue.start_plan()
        queue.want([status("a1", 1)])
        await asyncio.sleep(0.1)
        queue.start_plan()
        server.gate.set()
        await until(done)
        queue.want([status("a1", 1)])  # of a picture from before the write
        await asyncio.sleep(0.2)
        assert server.written == [("a1", 1)]


async def test_the_first_error_is_told_with_the_next_plan_and_nothing_is_written_meanwhile(server: SlowServer) -> None:
    done = asyncio.Event()
    server.answer = 503
    async with serving(server) as (desk, _):
        queue = StatusQueue(desk, done.set)
        queue.start_plan()
        queue.want([status(f"a{number}", 1) for number in range(40)])
        server.gate.set()
        await until(done)
        with pytest.raises(ApiError):
            queue.want([status("a1", 1)])
        server.answer = 200
        queue.start_plan()
        queue.want([status("a1", 1)])
        await until(done)
        assert server.written == [("a1", 1)]


async def test_one_status_that_is_refused_holds_up_no_other(server: SlowServer) -> None:
    done = asyncio.Event()
    server.poison = "a3"
    server.gate.set()
    async with serving(server) as (desk, _):
        queue = StatusQueue(desk, done.set)
        for _ in range(3):
            queue.start_plan()
            queue.want([status(f"a{number}", 1) for number in range(20)])
            await until(done)
        assert len({name for name, _ in server.written}) == 19
        assert server.tries == 1, "tried again after a while only"


async def test_without_the_lease_nothing_more_is_written(server: SlowServer) -> None:
    done = asyncio.Event()
    async with serving(server) as (desk, fence):
        queue = StatusQueue(desk, done.set)
        queue.start_plan()
        queue.want([status(f"a{number}", 1) for number in range(40)])
        await asyncio.sleep(0.2)
        fence.open = False
        server.gate.set()
        await until(done)
        assert len(server.written) == WRITERS, "those that were on their way"
        with pytest.raises(NotLeadingError):
            queue.want([status("a1", 1)])
