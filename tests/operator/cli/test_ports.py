"""`lorafleet ports rotate` against engines that follow the Secret as slowly as the test likes."""

import asyncio
from collections.abc import Iterator

import pytest
from aiohttp import web

from lorafleet_kube.access import load_access
from lorafleet_kube.api import connect
from lorafleet_operator.cli.ports import Terms, UnfinishedError, register, rotate_ports
from lorafleet_operator.core.port_keys import NEXT, PREVIOUS
from lorafleet_operator.shell.rotation import Rotation
from tests.support.commands import custom, run_command
from tests.support.fake_api import FakeApi, run_in_thread
from tests.support.port_keys import OLD, PATH, FollowingEngine, keys_of, put_keys

FAST = Terms("lorafleet-system", quiet=0.0, patience=5.0)
HASTY = Terms("lorafleet-system", quiet=0.0, patience=0.0)


@pytest.fixture
def engine(fake_api: FakeApi) -> Iterator[FollowingEngine]:
    """The engine of the one ready pod; another pod is not ready and answers nothing."""
    put_keys(fake_api)
    fake_api.add("lorapools", custom("LoraPool", "smol"))
    for name, ready in (("smol-shared-0", "True"), ("smol-shared-1", "False")):
        meta = {"name": name, "namespace": "demo", "labels": {"lorafleet.io/pool": "smol"}}
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        fake_api.add("pods", {"metadata": meta, "status": status}, group="/api/v1")
    found = FollowingEngine(fake_api)
    app = web.Application()
    app.router.add_get("/metrics", found.metrics)
    with run_in_thread(app) as port:
        fake_api.ports = {"smol-shared-0": port}
        yield found


async def rotate(terms: Terms) -> list[str]:
    told: list[str] = []
    async with connect(await load_access()) as api:
        await rotate_ports(api, terms, told.append)
    return told


async def test_new_keys_are_accepted_before_they_are_used_and_the_old_go_last(engine: FollowingEngine) -> None:
    told = await rotate(FAST)

    assert [line[:3] for line in told] == ["1/4", "2/4", "3/4", "4/4"]
    keys = keys_of(engine.api).by_entry
    assert keys.keys() == OLD.keys()
    assert not set(keys.values()) & set(OLD.values())
    stages = [tuple(each) for index, each in enumerate(engine.uses) if index == 0 or each != engine.uses[index - 1]]
    ports = sorted(OLD)
    assert stages == [
        tuple(sorted([*ports, *(port + NEXT for port in ports)])),
        tuple(sorted([*ports, *(port + PREVIOUS for port in ports)])),
        tuple(ports),
    ]


async def test_an_engine_that_has_not_heard_keeps_the_old_keys_in_use(engine: FollowingEngine) -> None:
    engine.deaf = True
    with pytest.raises(UnfinishedError, match=r"demo/smol-shared-0\. .*run the command again"):
        await rotate(HASTY)
    keys = keys_of(engine.api).by_entry
    assert {port: keys[port] for port in OLD} == OLD
    new = {port: keys[port + NEXT] for port in OLD}

    engine.deaf = False
    await rotate(FAST)
    assert keys_of(engine.api).by_entry == new, "it goes on with the keys that it had made"


async def test_an_old_token_that_is_used_keeps_the_old_keys_accepted(engine: FollowingEngine) -> None:
    engine.late = 100
    with pytest.raises(UnfinishedError, match="an old token is still used"):
        await rotate(Terms("lorafleet-system", quiet=60.0, patience=1.0))
    keys = keys_of(engine.api).by_entry
    assert {port: keys[port + PREVIOUS] for port in OLD} == OLD

    engine.late = 0
    assert [line[:3] for line in await rotate(FAST)] == ["2/4", "3/4", "4/4"]
    assert keys_of(engine.api).by_entry == {port: keys[port] for port in OLD}


def test_what_is_missing_and_what_is_too_short_is_told(fake_api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "ports", "rotate") == 1
    assert "there is no Secret lorafleet-system/lorafleet-port-keys" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_command(register, "ports", "rotate", "--quiet", "5s")
    assert "less than 15s" in capsys.readouterr().err


async def test_an_operator_that_goes_on_with_it_meanwhile_is_no_hindrance(engine: FollowingEngine) -> None:
    async def look_on() -> None:
        async with connect(await load_access()) as api:
            while engine.api.objects[PATH]["data"].keys() != OLD.keys() or keys_of(engine.api).by_entry == OLD:
                await Rotation(api, engine.tell, 0.0).look(engine.api.objects[PATH])

    async with asyncio.TaskGroup() as group:
        told = group.create_task(rotate(FAST))
        group.create_task(look_on())
    assert told.result()[-1].startswith("4/4")
    assert keys_of(engine.api).by_entry.keys() == OLD.keys()
