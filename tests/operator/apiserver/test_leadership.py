"""Restarts and take-overs: what one life of the operator leaves, the next continues."""

import asyncio
import time
from contextlib import suppress

import pytest

from e2e.cluster.apiserver import ApiServer
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.paths import SECRETS
from lorafleet_operator.shell.kinds import DEPLOYMENTS, LEASES, LORA_ADAPTERS, LORA_POOLS, STATEFUL_SETS
from tests.support.operator_process import OperatorProcess
from tests.support.team import Team, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]


async def holder(api: KubeApi, namespace: str) -> str:
    """Who leads, as the Lease says; empty when it was released."""
    found = await api.get(LEASES.path(namespace, "lorafleet-operator"))
    return str(found["spec"].get("holderIdentity") or "")


async def test_a_restarted_operator_changes_nothing_and_goes_on(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await team.pool()
    await team.settle_set()
    engine = await team.engine()
    await team.adapter("pirate")
    await team.condition("LoraAdapter", "pirate", "Ready", "True")
    await team.condition("LoraPool", "smol", "Ready", "True")
    paths = [LORA_POOLS.path(team.namespace, "smol"), LORA_ADAPTERS.path(team.namespace, "pirate")]
    paths.append(STATEFUL_SETS.path(team.namespace, "smol-shared"))
    before = [(await api.get(path))["metadata"]["resourceVersion"] for path in paths]
    calls = len(engine.calls)
    assert operator.stop() == 0
    assert await holder(api, operator.namespace) == ""
    operator.start()

    async def leads() -> bool:
        return await holder(api, operator.namespace) != ""

    await eventually(leads)
    await asyncio.sleep(3)
    assert [(await api.get(path))["metadata"]["resourceVersion"] for path in paths] == before
    assert len(engine.calls) == calls
    await team.adapter("poet")
    await team.condition("LoraAdapter", "poet", "Ready", "True")


async def test_a_standby_takes_over_from_a_killed_leader_but_not_before_its_lease_ends(
    api: KubeApi, crds: ApiServer, team: Team, operator: OperatorProcess
) -> None:
    await team.pool()
    await team.settle_set()
    standby = OperatorProcess(crds.kubeconfig, operator.namespace, "operator-1")
    standby.start()
    try:
        await asyncio.sleep(4)
        assert (await holder(api, operator.namespace)).startswith("operator-0_")
        operator.kill()
        killed = time.monotonic()

        async def taken_over() -> bool:
            return (await holder(api, operator.namespace)).startswith("operator-1_")

        await eventually(taken_over, seconds=40)
        assert 10 < time.monotonic() - killed < 30
        await team.tenant("acme")
        await team.condition("Tenant", "acme", "Ready", "True")
    finally:
        standby.stop()


async def test_what_the_operator_makes_for_itself_goes_with_its_deployment(
    api: KubeApi, crds: ApiServer, system: str
) -> None:
    body = {
        "metadata": {"name": "operator"},
        "spec": {
            "selector": {"matchLabels": {"app": "operator"}},
            "template": {
                "metadata": {"labels": {"app": "operator"}},
                "spec": {"containers": [{"name": "operator", "image": "registry.test/operator:1"}]},
            },
        },
    }
    deployment = await api.request("POST", DEPLOYMENTS.path(system), body=body)
    operator = OperatorProcess(crds.kubeconfig, system, LORAFLEET_DEPLOYMENT="operator")
    operator.start()
    try:
        for path in (LEASES.path(system, "lorafleet-operator"), SECRETS.path(system, "lorafleet-port-keys")):

            async def owner(path: str = path) -> str | None:
                with suppress(ApiError):
                    found = await api.get(path)
                    return str(found["metadata"]["ownerReferences"][0]["uid"])
                return None

            assert await eventually(owner, what=path) == deployment["metadata"]["uid"]
    finally:
        operator.stop()


async def test_a_leader_whose_lease_is_taken_away_ends(api: KubeApi, team: Team, operator: OperatorProcess) -> None:
    await team.pool()
    await team.tokens()
    path = LEASES.path(operator.namespace, "lorafleet-operator")
    # Somebody else holds it and goes on renewing: the leader may not take it back and has to end by its deadline.
    for _ in range(14):
        renewed = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
        spec = {"holderIdentity": "intruder", "renewTime": renewed}
        await api.request("PATCH", path, body={"spec": spec}, content_type="application/merge-patch+json")
        if operator.ended:
            break
        await asyncio.sleep(1)
    assert operator.wait(5) == 3
    assert "the Lease is lost" in operator.log
