"""A tenant gets a merged set of its own and gives it back on a real API server, while requests never stop.

The engines are stubs; requests go where the statuses say, as a gateway sends them, and each must find its version.
"""

import asyncio

import pytest

from lorafleet_contracts.admin import MergedState, ParityState
from lorafleet_contracts.names import SHARED_SET, merged_set, split_version_key
from lorafleet_kube.api import KubeApi
from lorafleet_operator.shell.kinds import STATEFUL_SETS
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import StubEngine
from tests.support.team import Team
from tests.support.traffic import Traffic, traffic_of

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

PAUSE_SECONDS = 0.05
"""Twenty requests a second: twice what a replica is assumed to do."""
PROMOTION = {
    "promoteAtPercent": 50,
    "promoteAfter": "2s",
    "demoteAtPercent": 45,
    "demoteAfter": "2s",
    "maxDedicated": 1,
}


async def merging_engine(api: KubeApi, team: Team, name: str) -> StubEngine:
    """Play StatefulSet controller, kubelet and engine of a merged set, as its manifest says."""
    await team.settle_set(engines=name)
    manifest = await api.get(STATEFUL_SETS.path(team.namespace, f"smol-{name}"))
    env = {each["name"]: each["value"] for each in manifest["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["LORAFLEET_MERGE_ADAPTER"] == "http://assets/pirate"
    uid, digest = split_version_key(env["LORAFLEET_MERGE_VERSION"])
    engine = await team.engine(engines=name)
    engine.merged = MergedState(uid=uid, digest=digest)
    engine.touch()
    return engine


async def test_a_tenant_is_promoted_and_demoted_without_a_failed_request(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await team.pool(replicas={"min": 1, "max": 3}, promotion=PROMOTION)
    await team.settle_set()
    engines = {SHARED_SET: [await team.engine()]}
    await team.adapter("pirate")
    tenant = await team.tenant("acme", "pirate")
    own = merged_set(tenant["metadata"]["uid"])
    await team.condition("LoraAdapter", "pirate", "Ready", "True")
    async with traffic_of(api, team, Traffic(engines, PAUSE_SECONDS)) as traffic:
        warming = await team.reach("acme", "Warming")
        assert warming["set"] == own
        engine = await merging_engine(api, team, own)
        engines[own] = [engine]
        await team.reach("acme", "Checking")
        assert traffic.served["acme", own] == 0, "nothing goes there before it has been checked"
        assert engine.merged is not None
        parity = ParityState(merged=1.1e-3, unmerged=1e-3, same_argmax=0.99, positions=160)
        engine.merged = engine.merged.model_copy(update={"parity": parity})
        engine.touch()
        dedicated = await team.reach("acme", "Dedicated")
        assert dedicated["reason"] == "Serving"
        shared = traffic.shared()
        await asyncio.sleep(1)
        assert traffic.served["acme", own] > 10
        assert traffic.shared() == shared, "all of it goes to its own set"

        engine.ready = False
        engine.touch()
        await asyncio.sleep(1)
        assert traffic.shared() > shared, "and back while that is away"
        engine.ready = True
        engine.touch()

        traffic.busy = False
        await team.reach("acme", "Draining", 90)
        traffic.busy = True
        told = await team.reach("acme", "Shared")
        assert told["reason"] == "Demoted"
        assert "set" not in told
        shared = traffic.shared()
        await asyncio.sleep(1)
        assert traffic.shared() > shared

        await team.set_gone(own)
        stages = ["Warming", "Checking", "CuttingOver", "Dedicated", "Draining", "Shared"]
        assert [each for each in traffic.stages["acme"] if each != "Shared"] == stages[:-1]
        assert traffic.stages["acme"][-1] == "Shared"
    events = await api.get(f"/api/v1/namespaces/{team.namespace}/events")
    told = {(each["type"], each["reason"]) for each in events["items"] if each["involvedObject"]["kind"] == "Tenant"}
    assert {("Normal", "PromotionWarming"), ("Normal", "PromotionDedicated"), ("Normal", "PromotionDemoted")} <= told
