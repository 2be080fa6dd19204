"""A thousand adapters at once: all become Ready, each by at most two status writes; a new leader writes nothing."""

import asyncio
from collections import Counter

import pytest

from lorafleet_kube.api import KubeApi
from lorafleet_kube.reflector import Change, Collection, Reflector
from lorafleet_operator.shell.kinds import LORA_ADAPTERS
from tests.support.operator_process import OperatorProcess
from tests.support.team import Object, Team, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]

ADAPTERS = 1000
CREATIONS_IN_FLIGHT = 16


def is_ready(found: Object) -> tuple[str, bool]:
    """(resource version, whether Ready)."""
    conditions = found.get("status", {}).get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return found["metadata"]["resourceVersion"], ready


async def test_a_thousand_adapters_converge(api: KubeApi, team: Team, operator: OperatorProcess) -> None:
    await team.pool(replicas={"min": 2})
    await team.settle_set()
    engines = [await team.engine(index) for index in range(2)]
    for engine in engines:
        engine.budget *= ADAPTERS
    await team.condition("LoraPool", "smol", "Ready", "True")
    versions: Counter[str] = Counter()

    def count(change: Change[tuple[str, bool]]) -> None:
        versions[change.key[1]] += 1

    reflector = Reflector(api, Collection(LORA_ADAPTERS.path(team.namespace)), is_ready, count)
    watching = asyncio.create_task(reflector.run())
    try:
        free = asyncio.Semaphore(CREATIONS_IN_FLIGHT)

        async def create(index: int) -> None:
            async with free:
                await team.adapter(f"a{index:04d}")

        await asyncio.gather(*(create(index) for index in range(ADAPTERS)))

        async def all_ready() -> bool:
            return len(reflector.records) == ADAPTERS and all(ready for _, ready in reflector.records.values())

        await eventually(all_ready, seconds=240)
        assert max(versions.values()) <= 3, "the creation and at most two status writes"
        loads = [len(engine.resident()) for engine in engines]
        assert sum(loads) == ADAPTERS
        assert abs(loads[0] - loads[1]) <= 2
        versions.clear()
        operator.stop()
        operator.start()
        await asyncio.sleep(10)
        assert versions == {}
    finally:
        watching.cancel()
    assert "Traceback" not in operator.log
