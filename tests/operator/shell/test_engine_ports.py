"""State and admin ports over real HTTP: what the operator asks, and what it makes of the answers."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from lorafleet_contracts.admin import (
    EngineState,
    InspectRequest,
    Problem,
    ProblemCode,
    SourceCredentials,
    SourceSpec,
    UsageState,
)
from lorafleet_contracts.names import engine_server_name
from lorafleet_kube.api import KubeApi
from lorafleet_operator.core.actions import Fetch, Inspect, Load, Unload
from lorafleet_operator.core.authority import term_of
from lorafleet_operator.core.places import Choice
from lorafleet_operator.core.problems import retry_at
from lorafleet_operator.core.snapshot import InspectionKey, PoolTokens, VersionOn
from lorafleet_operator.errors import EngineRefusedError, EngineUnreachableError, NotLeadingError
from lorafleet_operator.shell.admin import AdminAddress, EngineAdmin
from lorafleet_operator.shell.calls import PoolCalls
from lorafleet_operator.shell.certificates import Holder, issue, make_authority, read_authority
from lorafleet_operator.shell.engines import EngineLinks, engine_url, merge
from lorafleet_operator.shell.lease import Lease
from lorafleet_operator.shell.records import PodRecord
from lorafleet_operator.shell.trust import Trust
from tests.support.fleet import digest_of, make_state, make_version
from tests.support.handshake import server_context
from tests.support.stub_engine import StubEngine, run_stub_engine

ASSET = Fetch(SourceSpec(uri="http://assets/a"))
TOKENS = PoolTokens({"serving": ("s",), "state": ("state-token",), "admin": ("admin-token",)})
ADDRESSES = (f"127.{os.getpid() % 200 + 20}.9.{number}" for number in itertools.count(2))


async def no_secrets(secret: tuple[str, str], uri: str) -> SourceCredentials:
    raise AssertionError(f"nothing here has credentials: {secret}, {uri}")


class HeldLease(Lease):
    """A Lease whose fence the test opens and closes."""

    open = True

    def check(self) -> None:
        if not self.open:
            raise NotLeadingError("closed by the test")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
async def lease(session: aiohttp.ClientSession) -> HeldLease:
    return HeldLease(KubeApi(session, None), ("ns", "lease"), "me", _nobody)  # type: ignore[arg-type]  # asks nobody here


@pytest.fixture
async def engine() -> AsyncIterator[StubEngine]:
    tokens = {port: list(accepted) for port, accepted in TOKENS.by_port.items()}
    async with run_stub_engine(next(ADDRESSES), tokens) as running:
        yield running


def pod_at(ip: str) -> PodRecord:
    """A ready pod."""
    return PodRecord("smol-shared-0", "pod-uid", ("demo", "smol"), ip, True, False, "rev", "", "")


async def until(holds: object, seconds: float = 20.0) -> None:
    """Wait until a callable is true."""
    async with asyncio.timeout(seconds):
        while not holds():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_state_is_followed_and_only_what_counts_is_told(
    session: aiohttp.ClientSession, engine: StubEngine
) -> None:
    told: list[object] = []
    links = EngineLinks(session, Trust(), lambda _: TOKENS, told.append)
    links.follow(pod_at(engine.ip))
    assert not links.tried("pod-uid")
    await until(lambda: links.state("pod-uid") is not None)
    assert told == [("demo", "smol")]
    engine.touch()  # nothing that counts
    await asyncio.sleep(0.3)
    assert len(told) == 1
    polls = engine.polls
    await asyncio.sleep(1.5)
    assert engine.polls - polls <= 1, "the engine holds the question while there is no news"
    engine.restart()
    await until(lambda: len(told) == 2)
    known = links.state("pod-uid")
    assert known is not None
    assert known.boot_id == engine.boot_id
    await links.close()
    assert links.state("pod-uid") is None


async def test_load_is_told_now_and_then_and_not_with_every_request(
    session: aiohttp.ClientSession, engine: StubEngine
) -> None:
    told: list[object] = []
    links = EngineLinks(session, Trust(), lambda _: TOKENS, told.append)
    links.follow(pod_at(engine.ip))
    await until(lambda: links.state("pod-uid") is not None)
    for count in range(1, 4):
        engine.usage = [UsageState(tenant="demo/acme", adapter="u1@d", gateway="g", requests=count)]
        engine.touch()
        await until(lambda: links.state("pod-uid").usage == engine.usage)  # type: ignore[union-attr]  # it is there
    assert told == [("demo", "smol")] * 2, "once for the engine and once for the load"
    await links.close()


async def test_an_engine_that_refuses_our_token_has_no_state(
    session: aiohttp.ClientSession, engine: StubEngine
) -> None:
    told: list[object] = []
    links = EngineLinks(session, Trust(), lambda _: None, told.append)
    links.follow(pod_at(engine.ip))
    await until(lambda: links.tried("pod-uid"))
    assert links.state("pod-uid") is None
    assert told == [("demo", "smol")]
    links.follow(pod_at(""))
    assert links.tried("pod-uid")
    await links.close()


@pytest.mark.parametrize("fault", ["garbage", "cut", "flood"])
async def test_an_engine_gone_mad_has_no_state_and_is_followed_on(
    session: aiohttp.ClientSession, engine: StubEngine, lease: HeldLease, fault: str
) -> None:
    links = EngineLinks(session, Trust(), lambda _: TOKENS, lambda _: None)
    engine.fault = fault
    links.follow(pod_at(engine.ip))
    await until(lambda: links.tried("pod-uid"))
    assert links.state("pod-uid") is None
    calls = PoolCalls(EngineAdmin(session, lease, Trust()), lambda: None, no_secrets)
    key = InspectionKey("u1", 1)
    calls.start(Inspect(key, "smol-shared-0", ASSET, None), AdminAddress("r", engine.ip, "admin-token"))
    await until(lambda: calls.memory().inspections[key].problem is not None)
    engine.fault = ""
    await until(lambda: links.state("pod-uid") is not None)
    await links.close()
    await calls.close()


def test_deltas_change_and_remove_versions() -> None:
    one, two = make_version("u1", digest_of("1")), make_version("u2", digest_of("2"))
    known = make_state(one, two)
    news = EngineState.model_validate(
        make_state(one.model_copy(update={"in_flight": 3}), seq=2, full=False, removed=[two.key]).model_dump()
    )
    merged = merge(known, news)
    assert [(each.uid, each.in_flight) for each in merged.versions] == [("u1", 3)]
    assert (merged.seq, merged.full) == (2, True)


def test_addresses_of_both_families() -> None:
    assert engine_url("10.0.0.1", 8001, "/state") == "http://10.0.0.1:8001/state"  # type: ignore[arg-type]
    assert engine_url("fd00::1", 8002, "/x") == "http://[fd00::1]:8002/x"  # type: ignore[arg-type]


def action_for(engine: StubEngine, uri: str = "http://assets/a") -> Load:
    """Load what this source holds."""
    target = VersionOn("smol-shared-0", engine.boot_id, "u1", engine.report(uri).digest)
    return Load(target, Fetch(SourceSpec(uri=uri)), "demo", "a", Choice("smol-shared-0", "Why"))


async def test_calls_are_remembered_as_they_end(
    session: aiohttp.ClientSession, engine: StubEngine, lease: HeldLease
) -> None:
    done = asyncio.Event()
    calls = PoolCalls(EngineAdmin(session, lease, Trust()), done.set, no_secrets)
    address = AdminAddress("r", engine.ip, "admin-token")
    key = InspectionKey("u1", 1)
    calls.start(Inspect(key, "smol-shared-0", ASSET, None), address)
    assert calls.memory().inspections[key].pending
    assert calls.memory().inspections[key].replica == "smol-shared-0"
    await until(lambda: not calls.memory().inspections[key].pending)
    assert calls.memory().inspections[key].report == engine.report("http://assets/a")
    assert engine.calls.count("inspect u1") == 2, "asked again after 202"
    load = action_for(engine)
    calls.start(load, address)
    await until(lambda: not calls.memory().loads[load.target].pending)
    assert engine.resident() == {load.target.version}
    assert calls.memory().loads[load.target].reason == "Why"
    for _ in range(2):  # the second finds nothing there, which is as good
        calls.start(Unload(load.target), address)
        await until(lambda: not calls.memory().unloads[load.target].pending)
        assert calls.memory().unloads[load.target].problem is None
    assert engine.resident() == set()
    assert load.target not in calls.memory().loads
    calls.prune(living=set(), lives=set())
    assert calls.memory().inspections == calls.memory().unloads == {}
    await calls.close()


async def test_failures_keep_their_problem_and_are_counted(
    session: aiohttp.ClientSession, engine: StubEngine, lease: HeldLease
) -> None:
    calls = PoolCalls(EngineAdmin(session, lease, Trust()), lambda: None, no_secrets)
    problem = Problem(title="busy", status=503, code=ProblemCode.LOADER_BUSY)
    engine.refusals["http://assets/a"] = problem
    key = InspectionKey("u1", 1)
    for count in (1, 2):
        calls.start(Inspect(key, "r", ASSET, None), AdminAddress("r", engine.ip, "admin-token"))
        await until(lambda: not calls.memory().inspections[key].pending)
        assert (calls.memory().inspections[key].failures, calls.memory().inspections[key].problem) == (count, problem)
    await calls.close()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
async def test_a_clock_that_jumps_neither_delays_nor_hurries_a_retry(
    session: aiohttp.ClientSession, engine: StubEngine, lease: HeldLease, jump: float
) -> None:
    wall, steady = [50_000.0], [10.0]
    calls = PoolCalls(
        EngineAdmin(session, lease, Trust()), lambda: None, no_secrets, lambda: wall[0], lambda: steady[0]
    )
    engine.refusals["http://assets/a"] = Problem(title="busy", status=503, code=ProblemCode.LOADER_BUSY)
    key = InspectionKey("u1", 1)
    calls.start(Inspect(key, "r", ASSET, None), AdminAddress("r", engine.ip, "admin-token"))
    await until(lambda: not calls.memory().inspections[key].pending)
    due_in = retry_at(calls.memory().inspections[key]) - wall[0]
    wall[0], steady[0] = wall[0] + jump + 0.25, steady[0] + 0.25
    assert retry_at(calls.memory().inspections[key]) - wall[0] == pytest.approx(due_in - 0.25)
    await calls.close()


async def test_a_closed_fence_stops_a_call_before_it_leaves(
    session: aiohttp.ClientSession, engine: StubEngine, lease: HeldLease
) -> None:
    lease.open = False
    calls = PoolCalls(EngineAdmin(session, lease, Trust()), lambda: None, no_secrets)
    load = action_for(engine)
    calls.start(load, AdminAddress("r", engine.ip, "admin-token"))
    await until(lambda: load.target not in calls.memory().loads)
    assert engine.calls == []
    await calls.close()


async def test_silence_and_gibberish_are_an_unreachable_engine(
    session: aiohttp.ClientSession, lease: HeldLease
) -> None:
    admin = EngineAdmin(session, lease, Trust())
    with pytest.raises(EngineUnreachableError):
        await admin.unload(AdminAddress("r", next(ADDRESSES), "t"), ("u", digest_of("x")))
    ip = next(ADDRESSES)
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", _gibberish)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, ip, 8002).start()
    try:
        with pytest.raises(EngineUnreachableError, match="status 502"):
            await admin.unload(AdminAddress("r", ip, "t"), ("u", digest_of("x")))
    finally:
        await runner.cleanup()


async def test_a_problem_document_is_a_refusal(
    session: aiohttp.ClientSession, engine: StubEngine, lease: HeldLease
) -> None:
    engine.refusals["http://assets/a"] = Problem(
        title="no", status=422, code=ProblemCode.UNSUPPORTED_ADAPTER, reasons=["DoRA"]
    )
    admin = EngineAdmin(session, lease, Trust())
    with pytest.raises(EngineRefusedError) as caught:
        await admin.inspect(
            AdminAddress("r", engine.ip, "admin-token"),
            "u1",
            InspectRequest(generation=1, source=SourceSpec(uri="http://assets/a")),
        )
    assert caught.value.problem.reasons == ["DoRA"]
    assert "admin-token" not in repr(AdminAddress("r", engine.ip, "admin-token"))


async def _gibberish(_: web.Request) -> web.Response:
    return web.Response(status=502, text="<html>")


async def _nobody() -> list[dict[str, object]]:
    return []


async def test_a_replica_without_answers_fails_what_waits_for_it_at_once(
    session: aiohttp.ClientSession, engine: StubEngine, lease: HeldLease
) -> None:
    calls = PoolCalls(EngineAdmin(session, lease, Trust()), lambda: None, no_secrets)
    engine.fault = "cut"
    keys = [InspectionKey(f"u{number}", 1) for number in range(20)]
    for key in keys:
        calls.start(Inspect(key, "smol-shared-0", ASSET, None), AdminAddress("r", engine.ip, "admin-token"))
    await until(lambda: not any(each.pending for each in calls.memory().inspections.values()))
    memory = calls.memory()
    assert all(each.failures == 1 for each in memory.inspections.values())
    details = [each.problem.detail for each in memory.inspections.values() if each.problem]
    assert sum("another call" in each for each in details) == len(keys) - 4, "only four were made"
    assert set(memory.silent) == {"smol-shared-0"}
    engine.fault = ""
    calls.start(Inspect(keys[0], "smol-shared-0", ASSET, None), AdminAddress("r", engine.ip, "admin-token"))
    await until(lambda: calls.memory().inspections[keys[0]].report is not None)
    assert calls.memory().silent == {}
    await calls.close()


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
async def test_what_is_remembered_keeps_its_age_when_the_clock_is_set(
    session: aiohttp.ClientSession, engine: StubEngine, lease: HeldLease, jump: float
) -> None:
    now = [1_800_000_000.0, 500.0]
    calls = PoolCalls(EngineAdmin(session, lease, Trust()), lambda: None, no_secrets, lambda: now[0], lambda: now[1])
    engine.refusals["http://assets/a"] = Problem(title="no", status=502, code=ProblemCode.SOURCE_UNREACHABLE)
    key = InspectionKey("u1", 1)
    calls.start(Inspect(key, "smol-shared-0", ASSET, None), AdminAddress("r", engine.ip, "admin-token"))
    await until(lambda: not calls.memory().inspections[key].pending)
    target = VersionOn("smol-shared-0", engine.boot_id, "u2", digest_of("2"))
    calls.note_surplus([target])
    now[0] += jump + 3
    now[1] += 3
    calls.note_surplus([target])
    memory = calls.memory()
    assert now[0] - memory.inspections[key].at == 3
    assert now[0] - memory.surplus[target] == 3
    await calls.close()


async def test_an_engine_with_tls_must_prove_that_it_is_of_its_pool(
    session: aiohttp.ClientSession, lease: HeldLease, tmp_path: Path
) -> None:
    """What it is sent goes to the right one only, and to nobody before it is known whom to trust."""
    now, right, wrong = time.time(), engine_server_name("demo", "smol"), engine_server_name("demo", "other")
    authority = read_authority(*(each.encode() for each in make_authority(now)))
    issued = issue(authority, Holder("pool/u", (right,)), term_of(authority.root, "pool/u", now))
    tokens = {port: list(accepted) for port, accepted in TOKENS.by_port.items()}
    context = server_context(issued.chain, issued.key, tmp_path)
    trust, told = Trust(), asyncio.Event()
    links = EngineLinks(session, trust, lambda _: TOKENS, lambda _: told.set())
    async with run_stub_engine(next(ADDRESSES), tokens, context) as engine:
        links.follow(replace(pod_at(engine.ip), server_name=right))
        await asyncio.sleep(0.1)
        assert not links.tried("pod-uid"), "nobody is judged before it is known whom to trust"
        trust.take(authority.root.pem)
        await until(lambda: links.state("pod-uid") is not None)
        await links.close()
        told.clear()
        links.follow(replace(pod_at(engine.ip), server_name=wrong))
        await asyncio.wait_for(told.wait(), 20)
        assert links.state("pod-uid") is None
        await links.close()

        admin, version = EngineAdmin(session, lease, trust), ("u", digest_of("x"))
        await admin.unload(AdminAddress("r", engine.ip, "admin-token", right), version)
        asked = list(engine.calls)
        with pytest.raises(EngineUnreachableError, match="Hostname mismatch"):
            await admin.unload(AdminAddress("r", engine.ip, "admin-token", wrong), version)
        assert engine.calls == asked
