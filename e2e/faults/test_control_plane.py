"""What decides is away or double: operator, API server, etcd. Requests never notice, and nothing is lost."""

import os
import signal

import pytest

from e2e.cluster.errors import ClusterError
from e2e.faults.conftest import stored
from e2e.faults.host import Control, kill, pod_processes
from e2e.faults.stage import Stage, component, fault
from e2e.faults.store import FaultyStore
from e2e.fleet import NAMESPACE, adapter, holds
from e2e.waiting import wait_until

NEWCOMERS = ("robot", "poet", "telegram")
OPERATOR = "lorafleet_operator"
OUTAGE_SECONDS = 12.0
"""Longer than a leader trusts its Lease: operators lose it, end, and start again."""


def is_ready(stage: Stage, name: str) -> bool:
    try:
        return holds(stage.fleet.get("loraadapter", name), "Ready")
    except ClusterError:  # the API server is on its way back
        return False


def operator_restarts(stage: Stage) -> dict[str, int]:
    pods = stage.fleet.list("pods", NAMESPACE, component("operator"))
    return {pod["metadata"]["name"]: int(pod["status"]["containerStatuses"][0]["restartCount"]) for pod in pods}


@pytest.mark.long
def test_the_leader_is_killed_in_the_midst_of_a_plan(stage: Stage, store: FaultyStore) -> None:
    with fault(stage, "operator-killed", "the leading operator killed in the midst of a plan") as watch:
        store.mode = "slow"
        stage.fleet.apply(*[stored(store, name, name, minReplicas=2) for name in NEWCOMERS])
        wait_until(lambda: len(store.asked) >= 3, seconds=30, what="engines fetch what is new")
        leader = stage.leader()
        watch.broken()
        kill(leader, OPERATOR)
        store.mode = "honest"
        wait_until(
            lambda: all(is_ready(stage, name) for name in NEWCOMERS), seconds=150, what="the plan is carried out"
        )


def test_two_operators_at_once(stage: Stage, robot: str) -> None:
    """The leader is frozen until another leads, then thawed: it must end without writing anything."""
    leader = stage.leader()
    before = operator_restarts(stage)[leader]
    with fault(stage, "two-operators", "the leading operator frozen until another leads, then thawed") as watch:
        (process, *_) = pod_processes(leader, OPERATOR)
        watch.broken()
        os.kill(process, signal.SIGSTOP)
        try:
            wait_until(lambda: stage.leader() not in ("", leader), seconds=30, what="another leads")
            stage.fleet.apply(adapter(robot))
        finally:
            os.kill(process, signal.SIGCONT)
        wait_until(lambda: operator_restarts(stage)[leader] > before, seconds=30, what="the old leader has ended")
        wait_until(lambda: is_ready(stage, robot), seconds=30, what="robot is Ready")
    assert stage.leader() != leader
    text = stage.fleet.kubectl.run("logs", leader, "-n", NAMESPACE, "--previous")
    assert "the Lease is lost" in text, text


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "name", "what"), [("kube-apiserver", "api-server", "the API server"), ("etcd", "etcd", "etcd")]
)
def test_a_part_of_the_control_plane_is_away(
    stage: Stage, control: Control, robot: str, program: str, name: str, what: str
) -> None:
    with fault(stage, name, f"{what} away for {OUTAGE_SECONDS:.0f} s") as watch:
        watch.broken()
        control.stop(program)
        try:
            wait_until(lambda: watch.since() > OUTAGE_SECONDS, seconds=OUTAGE_SECONDS + 1, what="the outage")
        finally:
            control.start(program)
        watch.wait_for_answers(1)
        wait_until(lambda: applied(stage, robot), seconds=60, what="the API server takes objects")
        wait_until(lambda: is_ready(stage, robot), seconds=60, what="robot is Ready")


def applied(stage: Stage, name: str) -> bool:
    try:
        stage.fleet.apply(adapter(name))
    except ClusterError:
        return False
    return True
