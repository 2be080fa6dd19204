"""A rank class is split off and merged again on a real API server, while requests for both classes never stop."""

import pytest

from lorafleet_contracts.admin import StepsState
from lorafleet_contracts.names import SHARED_SET, class_set
from lorafleet_kube.api import KubeApi
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import SIZE, AdapterReport
from tests.support.team import Team, eventually
from tests.support.traffic import Traffic, traffic_of

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

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
    await team.tenant("acme", *RANKS)
    engines = {SHARED_SET: [shared]}
    async with traffic_of(api, team, Traffic(engines, tokens=TOKENS)):
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
        await team.set_gone(CLASS)
