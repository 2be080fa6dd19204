"""Faults on the operator's wires: the API server gone, stalled or expired, two leaders, engines mute or mad, kills."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer, start_apiserver, stop_apiserver
from e2e.cluster.paths import find_cache
from lorafleet_kube.access import load_access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_kube.errors import KubeError
from lorafleet_operator.shell.kinds import LEASES, LORA_ADAPTERS
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import Pace, StubEngine
from tests.support.team import Team, eventually, install_crds, make_team
from tests.support.wire import Wire, run_wire

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(240)]

SLOW = Pace(latency=0.3, patience=0.2)


@pytest.fixture
async def wire(crds: ApiServer, tmp_path: Path) -> AsyncIterator[tuple[Wire, Path]]:
    """A relay in front of the API server and the kubeconfig that leads through it."""
    async with run_wire(await load_access(str(crds.kubeconfig)), tmp_path) as made:
        yield made


@contextmanager
def wired(wire: tuple[Wire, Path], system: str, name: str = "operator-0") -> Iterator[OperatorProcess]:
    """An operator behind the relay."""
    operator = OperatorProcess(wire[1], system, name)
    operator.start()
    try:
        yield operator
    finally:
        operator.kill()


async def serving(team: Team, *adapters: str, engines: int = 1) -> list[StubEngine]:
    """A pool with Ready engines and adapters."""
    await team.pool(replicas={"min": engines})
    await team.settle_set()
    started = [await team.engine(index) for index in range(engines)]
    await team.condition("LoraPool", "smol", "Ready", "True")
    await ready(team, *adapters)
    return started


async def ready(team: Team, *adapters: str) -> None:
    """Make adapters and wait for them."""
    for name in adapters:
        await team.adapter(name)
    for name in adapters:
        await team.condition("LoraAdapter", name, "Ready", "True")


async def exactly(team: Team, engines: list[StubEngine], *adapters: str, seconds: float = 45.0) -> None:
    """Wait until the engines hold exactly these adapters' versions, each once."""
    found = [await team.get("LoraAdapter", name) for name in adapters]
    wanted = sorted(f"{each['metadata']['uid']}@{each['status']['digest']}" for each in found)

    async def ask() -> bool:
        return sorted(key for engine in engines for key in engine.resident()) == wanted

    await eventually(ask, seconds, f"exactly {adapters} on the engines")


async def versions(team: Team, *adapters: str) -> list[str]:
    """Resource versions: they tell whether anything was written."""
    return [(await team.get("LoraAdapter", name))["metadata"]["resourceVersion"] for name in adapters]


async def test_watches_that_expire_and_what_they_missed(team: Team, wire: tuple[Wire, Path], system: str) -> None:
    with wired(wire, system) as operator:
        engines = await serving(team, "pirate", "poet", "robot")
        before = await versions(team, "poet", "robot")
        wire[0].break_("cut")
        await team.delete("LoraAdapter", "pirate")
        await team.adapter("chef")
        await asyncio.sleep(1)
        wire[0].mend()
        wire[0].expire()
        await team.condition("LoraAdapter", "chef", "Ready", "True")
        for _ in range(3):
            wire[0].expire()
            await asyncio.sleep(0.5)
        await exactly(team, engines, "poet", "robot", "chef")
        assert await versions(team, "poet", "robot") == before
        assert not operator.ended
        assert "Traceback" not in operator.log


async def test_an_api_server_out_of_reach_for_less_than_the_lease(
    team: Team, wire: tuple[Wire, Path], system: str
) -> None:
    with wired(wire, system) as operator:
        engines = await serving(team, "pirate", "poet")
        before = await versions(team, "poet")
        wire[0].break_("stall")
        await team.delete("LoraAdapter", "pirate")
        await team.adapter("chef")
        await asyncio.sleep(5)
        wire[0].mend()
        await team.condition("LoraAdapter", "chef", "Ready", "True")
        await exactly(team, engines, "poet", "chef")
        assert await versions(team, "poet") == before
        assert not operator.ended


async def test_a_leader_that_is_cut_off_stops_before_another_begins(
    api: KubeApi, crds: ApiServer, team: Team, wire: tuple[Wire, Path], system: str
) -> None:
    with wired(wire, system, "loser") as loser:
        [engine] = await serving(team, "pirate")
        winner = OperatorProcess(crds.kubeconfig, system, "winner")
        winner.start()
        try:
            wire[0].break_("stall")
            cut = time.monotonic()
            assert await asyncio.to_thread(loser.wait, 30) == 3
            assert time.monotonic() - cut < 13, "the process ends with its Lease, not later"

            async def taken_over() -> bool:
                lease = await api.get(LEASES.path(system, "lorafleet-operator"))
                return str(lease["spec"].get("holderIdentity")).startswith("winner_")

            assert not await taken_over(), "the loser has ended before another could begin"
            await eventually(taken_over)
            written = len(wire[0].writes)
            wire[0].mend()
            await ready(team, "poet")
            assert len(wire[0].writes) == written
            loads = [call for call in engine.calls if call.startswith("load ")]
            assert len(loads) == len(set(loads)), "nobody else loads what the winner loads"
        finally:
            winner.stop()


@pytest.fixture
def private(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server that a test may kill."""
    try:
        server = start_apiserver(find_cache(), tmp_path / "own", die_with_parent=True)
        install_crds(server)
        yield server
    finally:
        stop_apiserver(tmp_path / "own")


def find_apiserver(server: ApiServer) -> tuple[int, list[bytes]]:
    """Process and command line of an API server."""
    port = f"--secure-port={server.url.rpartition(':')[2]}".encode()
    for process in Path("/proc").iterdir():
        words = (process / "cmdline").read_bytes().split(b"\0")[:-1] if process.name.isdecimal() else []
        if port in words:
            return int(process.name), words
    raise AssertionError("no such process")


@asynccontextmanager
async def restarted(server: ApiServer, api: KubeApi, down: float) -> AsyncIterator[None]:
    """The API server killed, gone for `down` seconds, and back for as long as this lasts."""
    pid, command = find_apiserver(server)
    os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(down)
    again = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:

        async def answers() -> bool:
            try:
                await api.get(LORA_ADAPTERS.path("default"))
            except KubeError:
                return False
            return True

        await eventually(answers, 60)
        yield
    finally:
        again.kill()
        await asyncio.to_thread(again.wait)


async def test_an_api_server_that_is_killed_and_returns(private: ApiServer) -> None:
    async with (
        connect(await load_access(str(private.kubeconfig))) as api,
        AsyncExitStack() as lives,  # what comes back lives until the teams are cleaned up
        make_team(api) as system,
        make_team(api) as team,
    ):
        operator = OperatorProcess(private.kubeconfig, system.namespace)
        operator.start()
        try:
            engines = await serving(team, "pirate", "poet")
            before = await versions(team, "poet")
            await lives.enter_async_context(restarted(private, api, down=3))
            await team.delete("LoraAdapter", "pirate")
            await team.adapter("chef")
            # a return that takes longer than the Lease's deadline ends the operator, be it at once or in a moment
            async with operator.restarted_when_it_ends():
                await team.condition("LoraAdapter", "chef", "Ready", "True")
                await exactly(team, engines, "poet", "chef")
            assert await versions(team, "poet") == before
        finally:
            operator.kill()


async def test_a_kill_in_the_middle_leaves_nothing_half_done(team: Team, operator: OperatorProcess) -> None:
    engines = await serving(team, engines=2)
    for engine in engines:
        engine.pace = SLOW
    names = [f"a{number:02d}" for number in range(40)]
    for name in names:
        await team.adapter(name)

    async def some_loaded() -> bool:
        return 3 < sum(len(engine.resident()) for engine in engines) < len(names)

    await eventually(some_loaded)
    operator.kill()
    held = [engine.resident() for engine in engines]
    operator.start()
    for name in names:
        await team.condition("LoraAdapter", name, "Ready", "True")
    await exactly(team, engines, *names)
    assert all(before <= engine.resident() for before, engine in zip(held, engines, strict=True)), "nothing moved"


@pytest.mark.parametrize("fault", ["hang", "garbage", "flood", "cut"])
async def test_an_engine_that_is_mute_or_mad_holds_up_nobody_else(
    team: Team, operator: OperatorProcess, fault: str
) -> None:
    engines = await serving(team, "pirate", "poet", engines=2)
    bad, good = sorted(engines, key=lambda each: each.ip)
    bad.fault = fault
    names = [f"a{number:02d}" for number in range(12)]
    started = time.monotonic()
    await ready(team, *names)
    assert time.monotonic() - started < 40
    assert len(good.resident()) >= len(names)
    bad.fault = ""
    await exactly(team, engines, "pirate", "poet", *names, seconds=60)
    assert "Traceback" not in operator.log
    assert not operator.ended


async def test_what_an_engine_out_of_reach_held_is_loaded_elsewhere_and_taken_back(
    team: Team, operator: OperatorProcess
) -> None:
    engines = await serving(team, "pirate", engines=2)
    [holder] = [engine for engine in engines if engine.resident()]
    [other] = [engine for engine in engines if engine is not holder]
    holder.fault = "hang"

    async def moved() -> bool:
        return len(other.resident()) == 1

    await eventually(moved, 60, "the other engine has it")
    await team.condition("LoraAdapter", "pirate", "Ready", "True")
    holder.fault = ""
    await exactly(team, engines, "pirate", seconds=60)
