"""A rank class is split off and merged again on a real API server, while requests for both classes never stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from lorafleet_contracts.admin import StepsState
from lorafleet_contracts.names import SHARED_SET, class_set
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.reflector import Change, Collection, Reflector
from lorafleet_operator.shell.kinds import LORA_ADAPTERS, STATEFUL_SETS
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import SIZE, AdapterReport, StubEngine
from tests.support.team import Object, Team, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

PAUSE_SECONDS = 0.1
TOKENS = 200
"""Of every answer: two adapters that are asked ten times a second are in nearly every step."""
RANKS = {"small": 8, "large": 64}
CLASS = class_set(64)


def steps_of(base: float, per_rank: float) -> StepsState:
    """Sums over a thousand steps of so many seconds, with ranks that vary."""
    sums: dict[str, float] = dict.fromkeys(StepsState.model_fields, 0.0)
    for number in range(1000):
        sequences, ranks = 1 + number % 7, 8 * (number % 5)
        seconds = base + per_rank * ranks
        step = {
            "steps": 1, "seconds": seconds, "decode_steps": 1, "decode_seconds": seconds, "sequences": sequences,
            "rank_sum": ranks, "sequences_squared": sequences**2, "rank_squared": ranks**2,
            "sequences_rank": sequences * ranks, "seconds_sequences": seconds * sequences,
            "seconds_rank": seconds * ranks,
        }  # fmt: skip
        sums = {name: sums[name] + step[name] for name in sums}
    return StepsState.model_validate(sums)


@dataclass(slots=True)
class Traffic:
    """Requests for all adapters, each in the set that its status names."""

    engines: dict[str, list[StubEngine]]
    statuses: dict[str, Object] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def learn(self, change: Change[Object]) -> None:
        """Take one version of an adapter."""
        if change.new:
            self.statuses[change.key[1]] = change.new

    async def run(self) -> None:
        """Ask all the time. Cancel to stop."""
        while True:
            for name, found in self.statuses.items():
                status = found.get("status", {})
                if status.get("digest"):
                    self.ask(name, f"{found['metadata']['uid']}@{status['digest']}", status.get("set") or SHARED_SET)
            await asyncio.sleep(PAUSE_SECONDS)

    def ask(self, name: str, key: str, home: str) -> None:
        """One request."""
        engine = next((each for each in self.engines.get(home, ()) if each.answers(key)), None)
        if engine is None:
            self.failed.append(f"{name}: nobody in {home} answers {key}")
        else:
            engine.serve(key, "demo/acme", TOKENS)


@asynccontextmanager
async def traffic_of(api: KubeApi, team: Team, engines: dict[str, list[StubEngine]]) -> AsyncIterator[Traffic]:
    """Requests for as long as the block lasts, of which none may fail."""
    traffic = Traffic(engines)
    path = LORA_ADAPTERS.path(team.namespace)
    reflector: Reflector[Object] = Reflector(api, Collection(path), lambda found: found, traffic.learn)
    tasks = [asyncio.create_task(reflector.run())]
    await reflector.synced.wait()
    tasks.append(asyncio.create_task(traffic.run()))
    try:
        yield traffic
        assert traffic.failed == []
    finally:
        for task in tasks:
            task.cancel()


async def home_of(team: Team, name: str) -> str:
    """The set where an adapter is."""
    return str((await team.get("LoraAdapter", name)).get("status", {}).get("set") or SHARED_SET)


async def moved(team: Team, name: str, home: str, seconds: float = 60.0) -> None:
    """Wait until an adapter is at home there."""

    async def ask() -> bool:
        return await home_of(team, name) == home

    await eventually(ask, seconds, what=f"{name} is at home in {home}")


async def test_a_class_splits_and_merges_without_a_failed_request(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    spec = {
        "replicas": {"min": 1, "max": 4, "redundancy": 0},
        "rankClasses": {"ceilings": [16, 64], "splitAfter": "2s", "mergeAfter": "2s"},
        "promotion": {"enabled": False},
    }
    await team.pool(slo={"itl": "24ms"}, **spec)
    await team.settle_set()
    shared = await team.engine()
    shared.steps = steps_of(20e-3, 1e-4)
    for name, rank in RANKS.items():
        uri = f"http://assets/{name}"
        found = shared.report(uri)
        shared.findings[uri] = AdapterReport(
            digest=found.digest, bytes=SIZE, rank=rank, target_modules=["q_proj"], base="smollm2"
        )
        await team.adapter(name)
    for name in RANKS:
        await team.condition("LoraAdapter", name, "Ready", "True")
    engines = {SHARED_SET: [shared]}
    async with traffic_of(api, team, engines):

        async def wanted() -> bool:
            try:
                return bool(await api.get(STATEFUL_SETS.path(team.namespace, f"smol-{CLASS}")))
            except ApiError as error:
                if error.code != 404:
                    raise
            return False

        await eventually(wanted, 60, what="the class gets a set")
        await team.settle_set(engines=CLASS)
        engines[CLASS] = [await team.engine(engines=CLASS)]
        engines[CLASS][0].findings = shared.findings
        await moved(team, "large", CLASS)
        assert await home_of(team, "small") == SHARED_SET
        told = (await team.get("LoraPool", "smol"))["status"]["rankClasses"]
        assert (told["split"], told["reason"]) == ([64], "SplitPays")
        assert "slo.itl is 24.00 ms" in told["message"]

        await team.pool(slo={"itl": "60ms"}, **spec)
        await moved(team, "large", SHARED_SET)
        found = (await team.get("LoraAdapter", "large"))["status"]
        assert found["rankClass"] == 64

        async def gone() -> bool:
            return not await wanted()

        await eventually(gone, 30, what="the class's set is deleted")
