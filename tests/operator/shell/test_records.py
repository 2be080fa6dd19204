"""What is read out of API objects."""

from typing import Any

import pytest

from lorafleet_contracts.names import EXIT_BASE_DOES_NOT_FIT
from lorafleet_operator.shell.records import (
    NodeRecord,
    read_adapter,
    read_node,
    read_pod,
    read_pool,
    read_set,
    read_tenant,
)

META: dict[str, Any] = {
    "namespace": "demo",
    "name": "x",
    "uid": "u",
    "generation": 3,
    "creationTimestamp": "2026-11-30T00:00:00Z",
    "resourceVersion": "17",
    "labels": {"lorafleet.io/pool": "smol", "controller-revision-hash": "rev"},
}


def test_an_adapters_pool_is_in_its_own_namespace_unless_named() -> None:
    source = {"uri": "http://assets/a"}
    seen = read_adapter({"metadata": META, "spec": {"poolRef": {"name": "smol"}, "source": source}})
    assert (seen.value.pool, seen.revision, seen.value.meta.generation) == (("demo", "smol"), 17, 3)
    named = {"poolRef": {"name": "smol", "namespace": "serving"}, "source": source}
    assert read_adapter({"metadata": META, "spec": named}).value.pool == ("serving", "smol")


def test_what_our_models_cannot_read_becomes_a_record_with_the_reason() -> None:
    newer = {"poolRef": {"name": "smol"}, "colour": "red"}
    assert "colour" in read_tenant({"metadata": META, "spec": newer}).value.invalid
    assert "source" in read_adapter({"metadata": META, "spec": {"poolRef": {"name": "smol"}}}).value.invalid
    pool = read_pool({"metadata": META, "spec": {}, "status": {"unknown": 1}}).value
    assert pool.spec is None
    assert pool.status.conditions == []


def pod(**status: Any) -> Any:
    """The record of a pod with this status."""
    return read_pod({"metadata": META, "status": status})


def container(**state: Any) -> list[dict[str, Any]]:
    """containerStatuses of one container."""
    return [{"name": "engine", "ready": False, "restartCount": 3, **state}]


FULL = {"terminated": {"exitCode": EXIT_BASE_DOES_NOT_FIT, "message": "needs 15 bytes", "reason": "Error"}}
CRASHED = {"terminated": {"exitCode": 1, "message": "no config.json\n", "reason": "Error"}}


@pytest.mark.parametrize(
    ("status", "waiting", "message"),
    [
        ({}, "", ""),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
                ]
            },
            "Unschedulable",
            "no GPU",
        ),
        (
            {"containerStatuses": container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=CRASHED)},
            "CrashLoopBackOff",
            "no config.json",
        ),
        (
            {
                "containerStatuses": container(
                    state={"waiting": {"reason": "ErrImagePull", "message": "no route"}}, lastState=CRASHED
                )
            },
            "ErrImagePull",
            "no route",
        ),
        ({"containerStatuses": container(state=CRASHED, restartCount=0)}, "Terminated", "no config.json"),
        ({"containerStatuses": container(state=CRASHED)}, "CrashLoopBackOff", "no config.json"),
        (
            {"containerStatuses": container(state={"running": {}}, lastState=CRASHED)},
            "CrashLoopBackOff",
            "no config.json",
        ),
        ({"containerStatuses": container(state={"running": {}}, lastState=CRASHED, restartCount=1)}, "", ""),
        ({"containerStatuses": container(state=FULL, restartCount=0)}, "BaseDoesNotFit", "needs 15 bytes"),
        (
            {"containerStatuses": container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=FULL)},
            "BaseDoesNotFit",
            "needs 15 bytes",
        ),
        ({"containerStatuses": container(state={"running": {}}, lastState=FULL, ready=True)}, "", ""),
    ],
)
def test_why_a_pod_does_not_run(status: dict[str, Any], waiting: str, message: str) -> None:
    assert (pod(**status).waiting, pod(**status).message) == (waiting, message)


def test_a_pods_set_and_node() -> None:
    assert (pod().set, pod().node) == ("shared", "")
    labels = META["labels"] | {"lorafleet.io/set": "class-64"}
    found = read_pod({"metadata": META | {"labels": labels}, "spec": {"nodeName": "n1"}})
    assert (found.set, found.node) == ("class-64", "n1")


def test_a_nodes_zone_and_whether_it_is_cordoned() -> None:
    labels = {"topology.kubernetes.io/zone": "a"}
    assert read_node({"metadata": {"name": "n1"}, "spec": {}}) == NodeRecord("", False)
    found = read_node({"metadata": {"name": "n1", "labels": labels}, "spec": {"unschedulable": True}})
    assert found == NodeRecord("a", True)


def test_a_sets_name_and_owner() -> None:
    owners = [{"uid": "other"}, {"uid": "pool-uid", "controller": True}]
    labels = META["labels"] | {"lorafleet.io/set": "class-64"}
    found = read_set({"metadata": META | {"labels": labels, "ownerReferences": owners}})
    assert (found.name, found.set, found.owner) == ("x", "class-64", "pool-uid")
    assert read_set({"metadata": META}).owner == ""


def test_a_pods_readiness_address_and_end() -> None:
    record = pod(podIP="10.0.0.1", conditions=[{"type": "Ready", "status": "True"}])
    assert (record.ready, record.ip, record.deleting, record.template) == (True, "10.0.0.1", False, "rev")
    assert read_pod({"metadata": META | {"deletionTimestamp": "now"}}).deleting


@pytest.mark.parametrize(
    ("changes", "settled"),
    [
        ({}, True),
        ({"observedGeneration": 2}, False),
        ({"updateRevision": "rev-2"}, False),
        ({"replicas": 1}, False),
    ],
)
def test_a_set_is_settled_when_its_controller_has_rolled_out(changes: dict[str, Any], settled: bool) -> None:
    status = {"observedGeneration": 3, "replicas": 2, "currentRevision": "rev", "updateRevision": "rev", **changes}
    assert read_set({"metadata": META, "spec": {"replicas": 2}, "status": status}).settled == settled
