"""Requests that never stop, for everything that tenants may call, sent where the statuses say, as a gateway does.

Used by tests at API server height, where engines are stubs: the gateway's own reading of objects and its routing table
say which sets of replicas are asked, and one of these must have the version.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from lorafleet_contracts.names import SHARED_SET
from lorafleet_gateway.core.records import Model, Tenant
from lorafleet_gateway.core.table import Records, build_table
from lorafleet_gateway.shell.projections import read_adapter, read_pool, read_tenant
from lorafleet_kube.api import KubeApi
from lorafleet_kube.reflector import Change, Collection, Reflector
from lorafleet_operator.shell.kinds import LORA_ADAPTERS, LORA_POOLS, TENANTS
from tests.support.stub_engine import StubEngine
from tests.support.team import Object, Team


@dataclass(slots=True)
class Traffic:
    """One request of each tenant for each of its models, a `pause` after the other, with answers of so many `tokens`.

    `engines` by set are who may answer. `served` counts by tenant and set, `refused` by tenant what an isolated one's
    own set could not answer, `failed` says what found nobody; `stages` are those that a tenant went through.
    """

    engines: dict[str, list[StubEngine]]
    pause: float = 0.1
    tokens: int = 0
    busy: bool = True
    served: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    stages: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def learn(self, change: Change[tuple[Tenant, str]]) -> None:
        """Note where a tenant's promotion stands."""
        if change.new is None:
            return
        stages, stage = self.stages[change.key[1]], change.new[1]
        if stage and stages[-1:] != [stage]:
            stages.append(stage)

    def ask(self, tenant: Tenant, model: Model) -> None:
        """One request, to the first set that has the version."""
        key, name = model.version or "", tenant.key[1]
        for chosen in model.sets:
            for engine in self.engines.get(chosen, ()):
                if engine.answers(key):
                    engine.serve(key, "/".join(tenant.key), self.tokens)
                    self.served[name, chosen] += 1
                    return
        if tenant.isolated:
            self.refused[name] += 1
        else:
            self.failed.append(f"nobody in {model.sets} answers {key} for {name}")

    def shared(self, tenant: str = "acme") -> int:
        """What shared replicas have answered to a tenant."""
        return self.served[tenant, SHARED_SET]


@asynccontextmanager
async def traffic_of(api: KubeApi, team: Team, traffic: Traffic) -> AsyncIterator[Traffic]:
    """Requests for as long as the block lasts, of which none may fail."""
    pools = Reflector(api, Collection(LORA_POOLS.path(team.namespace)), read_pool, _ignore)
    adapters = Reflector(api, Collection(LORA_ADAPTERS.path(team.namespace)), read_adapter, _ignore)
    tenants = Reflector(api, Collection(TENANTS.path(team.namespace)), _tenant_and_stage, traffic.learn)

    async def run() -> None:
        while True:
            known = {key: tenant for key, (tenant, _) in tenants.records.items()}
            table = build_table(Records(pools=pools.records, adapters=adapters.records, tenants=known))
            asked = [(each, model) for each in known.values() for model in table.list_models(each) if model.version]
            for tenant, model in asked if traffic.busy else ():
                traffic.ask(tenant, model)
            await asyncio.sleep(traffic.pause)

    tasks = [asyncio.create_task(each.run()) for each in (pools, adapters, tenants)]
    for each in (pools, adapters, tenants):
        await each.synced.wait()
    tasks.append(asyncio.create_task(run()))
    try:
        yield traffic
        assert traffic.failed == []
    finally:
        for task in tasks:
            task.cancel()


def _tenant_and_stage(found: Object) -> tuple[Tenant, str]:
    promotion = found.get("status", {}).get("promotion") or {}
    return read_tenant(found), str(promotion.get("stage", ""))


def _ignore(_: object) -> None:
    """Records are looked at when a request is sent."""
