"""The operator against a real API server: from apply to Ready, updates, removals, restarts."""

import pytest

from tests.support.operator_process import OperatorProcess
from tests.support.team import Team

pytestmark = pytest.mark.apiserver


async def test_applied_in_any_order_everything_becomes_ready(team: Team, operator: OperatorProcess) -> None:
    await team.tenant("acme", "pirate")
    await team.condition("Tenant", "acme", "Stalled", "True", "PoolNotFound")
    await team.adapter("pirate")
    await team.condition("LoraAdapter", "pirate", "Stalled", "True", "PoolNotFound")
    await team.pool()
    await team.condition("Tenant", "acme", "Ready", "True")
    await team.condition("LoraAdapter", "pirate", "Verified", "Unknown", "AwaitingReplica")
    await team.settle_set()
    engine = await team.engine()
    found = await team.condition("LoraAdapter", "pirate", "Ready", "True")
    await team.condition("LoraPool", "smol", "Ready", "True")
    uid, digest = found["metadata"]["uid"], found["status"]["digest"]
    assert engine.resident() == {f"{uid}@{digest}"}
    assert found["status"]["placements"][0]["reason"] == "LeastLoaded"
    for kind, name in (("LoraPool", "smol"), ("LoraAdapter", "pirate"), ("Tenant", "acme")):
        meta = (await team.get(kind, name))["metadata"]
        assert "finalizers" not in meta
        assert "annotations" not in meta
    assert "Traceback" not in operator.log
