"""The size of a pool's shared set on a real API server: by load, by its owner, and across a new process."""

import asyncio

import pytest

from lorafleet_contracts.admin import UsageState
from lorafleet_kube.api import KubeApi
from lorafleet_operator.shell.kinds import LORA_POOLS, STATEFUL_SETS
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import StubEngine
from tests.support.team import MERGE_PATCH, Object, Team, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(240)]


async def size_of(api: KubeApi, team: Team) -> int:
    """Replicas of the StatefulSet."""
    found = await api.get(STATEFUL_SETS.path(team.namespace, "smol-shared"))
    return int(found["spec"]["replicas"])


async def until_size(api: KubeApi, team: Team, *sizes: int, seconds: float = 60.0) -> None:
    """Wait until the StatefulSet has one of these sizes."""

    async def ask() -> bool:
        return await size_of(api, team) in sizes

    await eventually(ask, seconds, f"{sizes} replicas")


async def ask_for(engine: StubEngine, requests_per_s: int) -> None:
    """Count so many requests every second, until cancelled."""
    done = 0
    while True:
        done += requests_per_s
        row = UsageState(tenant="demo/acme", adapter="u1@d", gateway="g", requests=done, completion_tokens=10 * done)
        engine.usage = [row]
        engine.touch()
        await asyncio.sleep(1)


async def test_it_grows_with_the_load_and_shrinks_when_that_has_gone_also_after_a_restart(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await team.pool(replicas={"max": 3, "redundancy": 0, "scaleDownAfter": "5s"})
    await team.settle_set()
    engine = await team.engine()
    await team.condition("LoraPool", "smol", "Ready", "True")
    load = asyncio.create_task(ask_for(engine, 40))
    try:
        await until_size(api, team, 2, 3)
        await until_size(api, team, 3)
        found: Object = await team.get("LoraPool", "smol")
        assert found["status"]["capacity"] == {"value": "10", "source": "Assumed", "penaltyPercent": 20} or (
            float(found["status"]["capacity"]["value"]) > 10
        )
        assert "requests/s at" in found["status"]["sets"][0]["message"]
        operator.kill()
        operator.start()
        await asyncio.sleep(12)
        assert await size_of(api, team) == 3, "a new process leaves the size until it knows the load"
    finally:
        load.cancel()
    await until_size(api, team, 1, seconds=150)
    assert "Traceback" not in operator.log


async def test_an_external_pool_is_as_large_as_the_scale_subresource_says(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await team.pool(replicas={"mode": "External", "max": 4})
    await team.settle_set()  # waits for it
    path = f"{LORA_POOLS.path(team.namespace, 'smol')}/scale"
    for wanted, size in ((3, 3), (9, 4), (2, 2)):
        await api.request("PATCH", path, body={"spec": {"replicas": wanted}}, content_type=MERGE_PATCH)
        await until_size(api, team, size)

    async def told() -> bool:
        found = await team.get("LoraPool", "smol")
        message = found["status"]["sets"][0]["message"]
        return bool(message.startswith("replicas.desired 2 (mode External)"))

    await eventually(told, what="the status says whose word it is")
