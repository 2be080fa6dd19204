"""Versions change: the new one loads everywhere, the digest moves, the old one goes; failures, rollbacks, many at once.

What a gateway would route to is watched all the time: the version that a status names must be in some engine's memory.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from lorafleet_contracts.admin import Problem, ProblemCode
from lorafleet_kube.api import KubeApi
from lorafleet_kube.reflector import Change, Collection, Reflector
from lorafleet_operator.core.residency import GRACE_SECONDS
from lorafleet_operator.shell.kinds import LORA_ADAPTERS
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import SIZE, Pace, StubEngine
from tests.support.team import Object, Team, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(240)]

LOOK_SECONDS = 0.02
MANY = 100


@dataclass(slots=True)
class Route:
    """What a gateway knows of one adapter, and when it learnt it (monotonic): digests in order, writes in all."""

    uid: str
    digests: list[tuple[str, float]] = field(default_factory=list)
    writes: int = 0


@dataclass(slots=True)
class Gateway:
    """Follows statuses as a gateway does; `misses` are moments at which no engine had what a status named."""

    engines: Sequence[StubEngine]
    routes: dict[str, Route] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)

    def learn(self, change: Change[Object]) -> None:
        """Take one version of an adapter."""
        found = change.new
        if found is None:
            return
        route = self.routes.setdefault(change.key[1], Route(found["metadata"]["uid"]))
        route.writes += 1
        digest = found.get("status", {}).get("digest")
        if digest and (not route.digests or route.digests[-1][0] != digest):
            route.digests.append((digest, time.monotonic()))

    async def route(self) -> None:
        """Ask for every adapter all the time. Cancel to stop."""
        while True:
            for name, route in self.routes.items():
                if route.digests:
                    key = f"{route.uid}@{route.digests[-1][0]}"
                    if not any(key in engine.resident() for engine in self.engines):
                        self.misses.append(f"{name}: nobody has {key}")
            await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def routing(api: KubeApi, team: Team, engines: Sequence[StubEngine]) -> AsyncIterator[Gateway]:
    """A gateway that must never be told of a version that nobody has."""
    gateway = Gateway(engines)
    reflector: Reflector[Object] = Reflector(
        api, Collection(LORA_ADAPTERS.path(team.namespace)), lambda found: found, gateway.learn
    )
    tasks = [asyncio.create_task(reflector.run()), asyncio.create_task(gateway.route())]
    await reflector.synced.wait()
    try:
        yield gateway
        assert gateway.misses == []
    finally:
        for task in tasks:
            task.cancel()


def key_of(found: Object) -> str:
    """`{uid}@{digest}` as the status names it."""
    return f"{found['metadata']['uid']}@{found['status']['digest']}"


def source(engine: StubEngine, uri: str) -> dict[str, Any]:
    """A source that declares its digest."""
    return {"source": {"uri": uri, "digest": engine.report(uri).digest}}


async def serving(team: Team, engines: int, *adapters: str, **spec: Any) -> list[StubEngine]:
    """A pool with Ready engines and adapters."""
    await team.pool(replicas={"min": engines})
    await team.settle_set()
    started = [await team.engine(index) for index in range(engines)]
    for name in adapters:
        await team.adapter(name, **spec)
    for name in adapters:
        await team.condition("LoraAdapter", name, "Ready", "True")
    return started


async def gone(engines: Sequence[StubEngine], key: str) -> None:
    """Wait until no engine has a version."""

    async def ask() -> bool:
        return not any(key in engine.resident() for engine in engines)

    await eventually(ask, what=f"{key} is gone")


async def test_all_replicas_have_the_new_version_before_the_digest_moves_and_the_old_goes_later(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    engines = await serving(team, 2, "pirate", minReplicas=2)
    engines[1].pace = Pace(latency=1.0, patience=0.2)  # one is slower than the other
    async with routing(api, team, engines) as gateway:
        old = key_of(await team.get("LoraAdapter", "pirate"))
        await team.adapter("pirate", "http://assets/pirate-2", minReplicas=2)

        async def moved() -> bool:
            return len(gateway.routes["pirate"].digests) == 2

        await eventually(moved)
        new = key_of(await team.get("LoraAdapter", "pirate"))
        assert all({old, new} <= engine.resident() for engine in engines), "both everywhere when the digest moves"
        await gone(engines, old)
        assert time.monotonic() - gateway.routes["pirate"].digests[-1][1] > GRACE_SECONDS - 1
        assert all(engine.resident() == {new} for engine in engines)


async def test_a_failed_update_keeps_the_old_says_so_and_rolls_back_without_a_load(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    [engine] = await serving(team, 1)
    old = source(engine, "http://assets/pirate")
    await team.adapter("pirate", **old)
    key = key_of(await team.condition("LoraAdapter", "pirate", "Ready", "True"))
    engine.refusals["load http://assets/pirate-2"] = Problem(
        title="unsupported", status=422, code=ProblemCode.UNSUPPORTED_ADAPTER, reasons=["the file is cut short"]
    )
    async with routing(api, team, [engine]):
        wrong = {"source": {"uri": "http://assets/pirate-3", "digest": f"sha256:{'0' * 64}"}}
        for spec, reason in (
            (source(engine, "http://assets/pirate-2"), "UnsupportedAdapter"),
            (wrong, "DigestMismatch"),
        ):
            await team.adapter("pirate", **spec)
            found = await team.condition("LoraAdapter", "pirate", "Stalled", "True", reason)
            assert key_of(found) == key
            await team.condition("LoraAdapter", "pirate", "Available", "True", "OldVersionServes")
            await team.condition("LoraAdapter", "pirate", "Ready", "False", reason)
        engine.calls.clear()
        await team.adapter("pirate", **old)
        assert key_of(await team.condition("LoraAdapter", "pirate", "Ready", "True")) == key
        assert engine.calls == [], "the files that serve are those that the old manifest declares"


async def test_the_same_manifest_or_digest_again_loads_nothing(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    [engine] = await serving(team, 1, "pirate")
    declared = source(engine, "http://assets/poet")
    await team.adapter("poet", **declared)
    await team.condition("LoraAdapter", "poet", "Ready", "True")
    engine.findings["http://assets/mirror"] = engine.report("http://assets/pirate")
    before = engine.resident()
    await asyncio.sleep(1)
    async with routing(api, team, [engine]) as gateway:
        engine.calls.clear()
        await team.adapter("pirate")
        await team.adapter("poet", **declared)
        await asyncio.sleep(2)
        assert engine.calls == []
        assert [route.writes for route in gateway.routes.values()] == [1, 1], "only what the first list showed"
        await team.adapter("poet", minReplicas=2, **declared)
        await team.condition("LoraAdapter", "poet", "Ready", "True")
        assert engine.calls == [], "another field, the same declared digest"
        await team.adapter("pirate", "http://assets/mirror")
        await team.condition("LoraAdapter", "pirate", "Ready", "True")
        assert not [call for call in engine.calls if not call.startswith("inspect ")], "another address, the same files"
        assert engine.resident() == before


async def test_a_replica_that_fails_the_new_version_does_not_hold_up_the_others(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    engines = await serving(team, 2, "pirate", minReplicas=2)
    engines[1].refusals["load http://assets/pirate-2"] = Problem(title="no", status=500, code=ProblemCode.INTERNAL)
    async with routing(api, team, engines):
        await team.adapter("pirate", "http://assets/pirate-2", minReplicas=2)
        found = await team.condition("LoraAdapter", "pirate", "Ready", "True")
        assert key_of(found) in engines[0].resident()
        engines[1].refusals.clear()

        async def everywhere() -> bool:
            return all(engine.resident() == {key_of(found)} for engine in engines)

        await eventually(everywhere, what="the new version on both")


async def test_a_hundred_updates_at_once_share_little_room_and_survive_a_kill(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    names = [f"a{number:03d}" for number in range(MANY)]
    engines = await serving(team, 2, *names)
    for engine in engines:
        engine.budget = (MANY // 2 + 10) * SIZE  # ten more than the versions that serve
        engine.pace = Pace(latency=0.05, patience=0.2)
    old = {name: key_of(await team.get("LoraAdapter", name)) for name in names}
    async with routing(api, team, engines) as gateway:
        await asyncio.gather(*(team.adapter(name, f"http://assets/{name}-2") for name in names))

        async def some_moved() -> bool:
            return sum(len(route.digests) == 2 for route in gateway.routes.values()) > 5

        await eventually(some_moved)
        operator.kill()
        operator.start()
        new = {}
        for name in names:
            new[name] = key_of(await team.condition("LoraAdapter", name, "Ready", "True", seconds=120))

        async def settled() -> bool:
            return sorted(key for engine in engines for key in engine.resident()) == sorted(new.values())

        await eventually(settled, what="only the new versions")
        assert not set(old.values()) & set(new.values())
        assert max(len(route.digests) for route in gateway.routes.values()) == 2, "nobody went back"
    assert max(engine.busiest for engine in engines) <= 8, "four inspections and four loads at once"
