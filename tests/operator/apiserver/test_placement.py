"""Placement by popularity on a real API server: copies of what is hot or pinned, and what losing a replica costs."""

import asyncio

import pytest

from tests.operator.apiserver.test_updates import key_of
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import StubEngine
from tests.support.team import Object, Team, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(240)]


async def ask_for(engines: list[StubEngine], key: str) -> None:
    """Ten requests a second for a version wherever it is, until cancelled."""
    while True:
        for engine in engines:
            if key in engine.resident():
                engine.serve(key, "demo/acme")
        await asyncio.sleep(0.1)


async def placements(team: Team, name: str, count: int) -> list[Object]:
    """The places that a status shows, once there are so many."""

    async def ask() -> list[Object] | None:
        found = (await team.get("LoraAdapter", name)).get("status", {}).get("placements", [])
        return found if len(found) == count else None

    return await eventually(ask, 90, f"{count} places of {name}")


async def test_what_is_hot_or_pinned_is_on_two_replicas_and_outlives_one_without_a_load(
    team: Team, operator: OperatorProcess
) -> None:
    await team.pool(replicas={"min": 2}, placement={"maxMovesPerHour": 3600})
    await team.settle_set()
    engines = [await team.engine(index) for index in range(2)]
    await team.adapter("pirate")
    await team.adapter("butler", pinned=True)
    await team.adapter("parrot")
    for name in ("pirate", "butler", "parrot"):
        await team.condition("LoraAdapter", name, "Ready", "True")
    pinned = key_of(await team.get("LoraAdapter", "butler"))
    assert {each["reason"] for each in await placements(team, "butler", 2)} == {"LeastLoaded", "Redundancy"}
    assert all(engine.versions[pinned].pinned for engine in engines)
    assert len(await placements(team, "pirate", 1)) == 1

    hot = key_of(await team.get("LoraAdapter", "pirate"))
    asking = asyncio.create_task(ask_for(engines, hot))
    try:
        found = await placements(team, "pirate", 2)
        assert {each["reason"] for each in found} == {"LeastLoaded", "Redundancy"}
        assert all(hot in engine.resident() for engine in engines)
        assert len(await placements(team, "parrot", 1)) == 1, "nobody asks for it"
        parrot = key_of(await team.get("LoraAdapter", "parrot"))
        lost, left = (0, 1) if parrot in engines[1].resident() else (1, 0)
        engines[left].calls.clear()
        await team.pod_status(f"smol-shared-{lost}", engines[lost].ip, ready=False)
        await placements(team, "pirate", 1)
        for name in ("pirate", "butler", "parrot"):
            await team.condition("LoraAdapter", name, "Ready", "True")
        assert {hot, pinned} <= engines[left].resident()
        assert engines[left].calls == [], "the other answers with what it has"
    finally:
        asking.cancel()
    assert "Traceback" not in operator.log


async def test_what_does_not_fit_beside_others_is_on_the_host_tier_and_ready(
    team: Team, operator: OperatorProcess
) -> None:
    await team.pool()
    await team.settle_set()
    engine = await team.engine()
    engine.budget = 2 * engine.report("http://assets/a0").bytes
    engine.touch()
    for number in range(3):
        await team.adapter(f"a{number}")
    for number in range(3):
        await team.condition("LoraAdapter", f"a{number}", "Ready", "True")

    async def shared() -> bool:
        return [each.wanted.value for each in engine.versions.values()] == ["host"] * 3

    await eventually(shared, 60, "all three share the room")
    assert engine.used() <= engine.budget
