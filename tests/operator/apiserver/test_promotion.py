"""A tenant gets a merged set of its own and gives it back on a real API server, while requests never stop.

The engines are stubs; requests go where the statuses say, as a gateway sends them, and each must find its version.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from lorafleet_contracts.admin import MergedState, ParityState
from lorafleet_contracts.names import SHARED_SET, merged_set, split_version_key
from lorafleet_contracts.resources.tenant import ROUTED_STAGES
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.reflector import Change, Collection, Reflector
from lorafleet_operator.shell.kinds import LORA_ADAPTERS, STATEFUL_SETS, TENANTS
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import StubEngine
from tests.support.team import Object, Team, eventually

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


@dataclass(slots=True)
class Traffic:
    """Requests of tenant `acme` for adapter `pirate`; `served` counts them by set, `failed` says what found nobody."""

    engines: dict[str, list[StubEngine]]
    namespace: str
    served: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    busy: bool = True
    _adapter: Object = field(default_factory=dict)
    _own: str | None = None

    def learn_adapter(self, change: Change[Object]) -> None:
        """Take one version of the adapter."""
        self._adapter = change.new or {}

    def learn_tenant(self, change: Change[Object]) -> None:
        """Take one version of the tenant."""
        promotion = (change.new or {}).get("status", {}).get("promotion") or {}
        stage = promotion.get("stage", "")
        if stage and (not self.stages or self.stages[-1] != stage):
            self.stages.append(stage)
        self._own = promotion.get("set") if stage in ROUTED_STAGES else None

    async def run(self) -> None:
        """Ask all the time. Cancel to stop."""
        while True:
            status = self._adapter.get("status", {})
            if self.busy and status.get("digest"):
                self.ask(f"{self._adapter['metadata']['uid']}@{status['digest']}", status.get("set") or SHARED_SET)
            await asyncio.sleep(PAUSE_SECONDS)

    def ask(self, key: str, home: str) -> None:
        """One request, to the first set that has the version."""
        for name in (self._own, home, SHARED_SET):
            for engine in self.engines.get(name or "", ()):
                if engine.answers(key):
                    engine.serve(key, f"{self.namespace}/acme")
                    self.served[name or ""] += 1
                    return
        self.failed.append(f"nobody answers {key}; own set {self._own}, home {home}")


@asynccontextmanager
async def traffic_of(api: KubeApi, team: Team, engines: dict[str, list[StubEngine]]) -> AsyncIterator[Traffic]:
    """Requests for as long as the block lasts, of which none may fail."""
    traffic = Traffic(engines, team.namespace)
    reflectors: list[Reflector[Object]] = [
        Reflector(api, Collection(kind.path(team.namespace)), lambda found: found, learn)
        for kind, learn in ((LORA_ADAPTERS, traffic.learn_adapter), (TENANTS, traffic.learn_tenant))
    ]
    tasks = [asyncio.create_task(each.run()) for each in reflectors]
    for each in reflectors:
        await each.synced.wait()
    tasks.append(asyncio.create_task(traffic.run()))
    try:
        yield traffic
        assert traffic.failed == []
    finally:
        for task in tasks:
            task.cancel()


async def promotion_of(team: Team) -> Object:
    """What the tenant's status says."""
    return (await team.get("Tenant", "acme")).get("status", {}).get("promotion") or {}


async def reach(team: Team, stage: str, seconds: float = 60.0) -> Object:
    """Wait for a stage."""

    async def ask() -> Object | None:
        found = await promotion_of(team)
        return found if found.get("stage") == stage else None

    return await eventually(ask, seconds, what=f"stage {stage}")


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
    async with traffic_of(api, team, engines) as traffic:
        warming = await reach(team, "Warming")
        assert warming["set"] == own
        engine = await merging_engine(api, team, own)
        engines[own] = [engine]
        await reach(team, "Checking")
        assert traffic.served[own] == 0, "nothing goes there before it has been checked"
        assert engine.merged is not None
        parity = ParityState(merged=1.1e-3, unmerged=1e-3, same_argmax=0.99, positions=160)
        engine.merged = engine.merged.model_copy(update={"parity": parity})
        engine.touch()
        dedicated = await reach(team, "Dedicated")
        assert dedicated["reason"] == "Serving"
        shared = traffic.served[SHARED_SET]
        await asyncio.sleep(1)
        assert traffic.served[own] > 10
        assert traffic.served[SHARED_SET] == shared, "all of it goes to its own set"

        engine.ready = False
        engine.touch()
        await asyncio.sleep(1)
        assert traffic.served[SHARED_SET] > shared, "and back while that is away"
        engine.ready = True
        engine.touch()

        traffic.busy = False
        await reach(team, "Draining", 90)
        traffic.busy = True
        told = await reach(team, "Shared")
        assert told["reason"] == "Demoted"
        assert "set" not in told
        shared = traffic.served[SHARED_SET]
        await asyncio.sleep(1)
        assert traffic.served[SHARED_SET] > shared

        async def gone() -> bool:
            try:
                await api.get(STATEFUL_SETS.path(team.namespace, f"smol-{own}"))
            except ApiError as error:
                return error.code == 404
            return False

        await eventually(gone, what="the set is deleted")
        stages = ["Warming", "Checking", "CuttingOver", "Dedicated", "Draining", "Shared"]
        assert [each for each in traffic.stages if each != "Shared" or each == traffic.stages[-1]][-6:] == stages
    events = await api.get(f"/api/v1/namespaces/{team.namespace}/events")
    told = {(each["type"], each["reason"]) for each in events["items"] if each["involvedObject"]["kind"] == "Tenant"}
    assert {("Normal", "PromotionWarming"), ("Normal", "PromotionDedicated"), ("Normal", "PromotionDemoted")} <= told
