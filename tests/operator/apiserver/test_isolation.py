"""`isolation: Dedicated` on a real API server: a tenant's adapters and requests are on its own replicas only, nobody
else's are there, and what becomes of it when these die or it no longer wants them.
"""

import asyncio

import pytest

from lorafleet_contracts.names import SHARED_SET, private_set
from lorafleet_kube.api import KubeApi
from tests.support.operator_process import OperatorProcess
from tests.support.team import Team, eventually
from tests.support.traffic import Traffic, traffic_of

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]


async def test_an_isolated_tenant_shares_no_replica_with_anybody(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await team.pool(replicas={"min": 1, "max": 2}, promotion={"enabled": False, "maxDedicated": 1})
    await team.settle_set()
    shared = await team.engine()
    tenant = await team.tenant("acme", "own", "lib", isolation="Dedicated")
    await team.tenant("globex", "lib", "theirs")
    uids = {name: (await team.adapter(name))["metadata"]["uid"] for name in ("own", "lib", "theirs")}
    private = private_set(tenant["metadata"]["uid"])
    for name in ("lib", "theirs"):
        await team.condition("LoraAdapter", name, "Ready", "True")
    engines = {SHARED_SET: [shared]}
    async with traffic_of(api, team, Traffic(engines)) as traffic:
        assert (await team.reach("acme", "Warming"))["set"] == private
        await team.condition("LoraAdapter", "own", "Verified", "Unknown", "AwaitingReplica")
        await team.settle_set(engines=private)
        engine = await team.engine(engines=private)
        engines[private] = [engine]
        await team.reach("acme", "Dedicated")
        found = await team.condition("LoraAdapter", "own", "Ready", "True")
        assert found["status"]["set"] == private

        async def loaded() -> bool:
            return {key.partition("@")[0] for key in engine.resident()} == {uids["own"], uids["lib"]}

        await eventually(loaded, what="its own set has all that it may call, and nothing else")

        async def both() -> bool:
            return traffic.served["acme", private] > 10 and traffic.shared("globex") > 10

        await eventually(both, what="each is answered by its own")

        engine.ready = False
        engine.touch()
        refused = traffic.refused["acme"]

        async def waiting() -> bool:
            return traffic.refused["acme"] > refused + 10

        await eventually(waiting, what="it waits for its replica")
        engine.ready = True
        engine.touch()
        answered = traffic.served["acme", private]

        async def answers() -> bool:
            return traffic.served["acme", private] > answered + 10

        await eventually(answers, what="its replica answers again")
        assert traffic.shared("acme") == 0
        assert traffic.served["globex", private] == 0
        assert not [call for call in shared.calls if uids["own"] in call]
        assert not [call for call in engine.calls if uids["theirs"] in call]

        refused = traffic.refused["acme"]
        await team.tenant("acme", "own", "lib", isolation="Shared")
        await team.reach("acme", "Shared")
        await team.set_gone(private)
        assert "set" not in (await team.get("LoraAdapter", "own"))["status"]
        await asyncio.sleep(1)
        assert traffic.shared("acme") > 0
        assert traffic.refused["acme"] == refused, "it goes home without a gap"
