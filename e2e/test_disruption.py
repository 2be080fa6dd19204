"""PodDisruptionBudgets: a drain takes engines, gateways and operators one at a time, and ends."""

import json

import pytest

from e2e.client import Client
from e2e.cluster.errors import CommandFailed
from e2e.engines import POOL, ready_replicas
from e2e.fleet import DEMO, NAMESPACE, Fleet
from e2e.waiting import wait_until


def evict(fleet: Fleet, pod: str) -> None:
    """What `kubectl drain` asks for each pod. Raises CommandFailed where a budget forbids it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": DEMO}}
    fleet.kubectl.run(
        "create", "--raw", f"/api/v1/namespaces/{DEMO}/pods/{pod}/eviction", "-f", "-", stdin=json.dumps(body)
    )


def allowed(fleet: Fleet, name: str, namespace: str) -> int:
    """How many disruptions a budget allows now."""
    budget = fleet.get("poddisruptionbudget", name, namespace)
    assert budget, name
    return int(budget["status"]["disruptionsAllowed"])


def is_new(fleet: Fleet, pod: str, uid: str) -> bool:
    """Whether there is another pod of that name than the one of this uid."""
    return (fleet.get("pod", pod) or {}).get("metadata", {}).get("uid", uid) != uid


def test_each_part_may_lose_one_pod(fleet: Fleet, acme: Client) -> None:
    for name in ("lorafleet-operator", "lorafleet-gateway"):
        assert allowed(fleet, name, NAMESPACE) == 1, name


def test_the_second_replica_stays_until_the_first_is_back(fleet: Fleet, acme: Client) -> None:
    first, second = sorted(ready_replicas(fleet))
    pod = fleet.get("pod", first) or {}
    node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
    fleet.kubectl.run("cordon", node)
    try:
        wait_until(lambda: allowed(fleet, f"{POOL}-shared", DEMO) == 1, seconds=60, what="one may go, once it is empty")
        evict(fleet, first)
        with pytest.raises(CommandFailed, match="disruption budget"):
            evict(fleet, second)
    finally:
        fleet.kubectl.run("uncordon", node)
    wait_until(lambda: is_new(fleet, first, uid), seconds=120, what="the evicted replica has gone")
    wait_until(lambda: ready_replicas(fleet) == {first, second}, seconds=180, what="and is back")
