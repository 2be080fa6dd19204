"""Sets of replicas on a real API server: one that nobody wants any more ends, and nothing else does."""

import pytest

from lorafleet_contracts.names import LABEL_POOL, LABEL_SET
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.paths import NODES
from lorafleet_operator.shell.kinds import BY_NAME, DISRUPTION_BUDGETS, LORA_POOLS, STATEFUL_SETS
from tests.support.operator_process import OperatorProcess
from tests.support.team import Object, Team, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]

KINDS = ("Service", "PodDisruptionBudget", "StatefulSet")


def labels_of(engines: str) -> Object:
    """Labels of a set of pool `smol`."""
    return {LABEL_POOL: "smol", LABEL_SET: engines}


def objects_of(engines: str, owner: str | None) -> dict[str, Object]:
    """The three objects of a set as the operator makes them, as far as it matters here."""
    owners = (
        [{"apiVersion": "lorafleet.io/v1alpha1", "kind": "LoraPool", "name": "smol", "uid": owner}] if owner else []
    )
    labels = labels_of(engines)
    meta = {
        "name": f"smol-{engines}",
        "labels": labels,
        "ownerReferences": [{**each, "controller": True} for each in owners],
    }
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", "image": "x"}]}}
    specs: dict[str, Object] = {
        "Service": {"clusterIP": "None", "selector": labels, "ports": [{"port": 8000}]},
        "PodDisruptionBudget": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
        "StatefulSet": {"serviceName": "x", "selector": {"matchLabels": labels}, "template": template},
    }
    versions = {"Service": "v1", "PodDisruptionBudget": "policy/v1", "StatefulSet": "apps/v1"}
    return {
        kind: {"apiVersion": versions[kind], "kind": kind, "metadata": meta, "spec": spec}
        for kind, spec in specs.items()
    }


async def make(api: KubeApi, team: Team, engines: str, owner: str | None) -> None:
    """Put a set of that name there."""
    for kind, body in objects_of(engines, owner).items():
        await api.request("POST", BY_NAME[kind].path(team.namespace), body=body)


async def there(api: KubeApi, team: Team, engines: str) -> set[str]:
    """Which of a set's objects exist."""
    return {kind for kind in KINDS if await exists(api, BY_NAME[kind].path(team.namespace, f"smol-{engines}"))}


async def exists(api: KubeApi, path: str) -> bool:
    """Whether there is such an object."""
    try:
        return bool(await api.get(path))
    except ApiError as error:
        if error.code != 404:
            raise
        return False


async def test_a_set_of_ours_that_nobody_wants_ends_and_foreign_objects_stay(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    pool = await team.pool()
    await make(api, team, "class-64", pool["metadata"]["uid"])
    await make(api, team, "class-32", None)

    async def gone() -> bool:
        return not await there(api, team, "class-64")

    await eventually(gone, what="the set's objects are deleted")
    await team.settle_set()
    await team.engine()
    found = await team.condition("LoraPool", "smol", "Ready", "True")
    assert [each["name"] for each in found["status"]["sets"]] == ["shared"]
    assert await there(api, team, "class-32") == set(KINDS)
    assert await there(api, team, "shared") == set(KINDS)
    assert "Traceback" not in operator.log


async def test_an_external_pool_follows_its_scale_and_is_emptied_before_it_shrinks(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await team.pool(replicas={"mode": "External", "desired": 2})
    await team.settle_set()
    engines = [await team.engine(number) for number in range(2)]
    for name in ("pirate", "poet"):
        await team.adapter(name)
        await team.condition("LoraAdapter", name, "Ready", "True")
    assert [len(each.resident()) for each in engines] == [1, 1]
    scale = LORA_POOLS.path(team.namespace, "smol", "scale")
    patch = {"spec": {"replicas": 1}}
    await api.request("PATCH", scale, body=patch, content_type="application/merge-patch+json")

    async def shrunk() -> bool:
        moved = len(engines[0].resident()) == 2
        found = await api.get(STATEFUL_SETS.path(team.namespace, "smol-shared"))
        assert moved or found["spec"]["replicas"] == 2, "it went before it was empty"
        return bool(found["spec"]["replicas"] == 1)

    await eventually(shrunk, what="the StatefulSet has one replica")
    told = await api.get(scale)
    assert told["spec"]["replicas"] == 1
    assert told["status"]["selector"] == "lorafleet.io/pool=smol,lorafleet.io/set=shared"
    assert "Traceback" not in operator.log


async def test_a_cordoned_replica_may_be_evicted_once_what_it_alone_had_is_elsewhere(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    nodes = [f"{team.namespace}-{number}" for number in range(2)]
    for node in nodes:
        await api.request("POST", NODES.path(), body={"metadata": {"name": node}})
    await team.pool(replicas={"min": 2})
    await team.settle_set()
    engines = [await team.engine(number, node=node) for number, node in enumerate(nodes)]
    for name in ("pirate", "poet"):
        await team.adapter(name)
        await team.condition("LoraAdapter", name, "Ready", "True")
    budget = DISRUPTION_BUDGETS.path(team.namespace, "smol-shared")

    async def allowed(number: int) -> bool:
        return bool((await api.get(budget))["spec"]["maxUnavailable"] == number)

    await eventually(lambda: allowed(0), what="nothing may be evicted that another could relieve")
    patch = {"spec": {"unschedulable": True}}
    await api.request("PATCH", NODES.path(name=nodes[1]), body=patch, content_type="application/merge-patch+json")
    await eventually(lambda: allowed(1), what="the cordoned one may be evicted")
    assert len(engines[0].resident()) == 2
    for node in nodes:
        await api.request("DELETE", NODES.path(name=node))
