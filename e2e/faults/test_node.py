"""A node is drained, or lost as by a power cut. What ran there is answered from the other node."""

from collections.abc import Iterator

import pytest

from e2e.cluster.outages import lose_node, return_node
from e2e.cluster.paths import find_cache
from e2e.engines import POOL, ready_replicas
from e2e.faults.stage import Stage, fault
from e2e.fleet import NAMESPACE
from e2e.nodes import FIRST_NODE, SECOND_NODE, node_of, place, uncordon_all
from e2e.waiting import wait_until

pytestmark = pytest.mark.long

LOST_SECONDS = 60.0
"""Longer than the control plane takes to call a node NotReady."""
LIBRARY_RETRIES = 8
"""A client whose connections lead to a node that is gone has to try again by itself, until its Service forgets it."""


@pytest.fixture
def replica(stage: Stage) -> Iterator[str]:
    """A replica that runs on the second node; the other one runs on the first."""
    name = f"{POOL}-shared-1"
    place(stage.fleet, {f"{POOL}-shared-0": FIRST_NODE, name: SECOND_NODE})
    wait_until(stage.whole, seconds=60, what="the stage is set", pause=0.5)
    yield name
    uncordon_all(stage.fleet)


def test_a_node_is_drained(stage: Stage, replica: str) -> None:
    """Nothing is cut: running streams finish before their engine goes."""
    drain = ["drain", SECOND_NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s"]
    with fault(stage, "node-drained", "a node drained", retries=2, within=240) as watch:
        watch.broken()
        stage.fleet.kubectl.run(*drain)
        wait_until(lambda: replica in ready_replicas(stage.fleet), seconds=180, what="the replica on the other node")
        assert node_of(stage.fleet, replica) != SECOND_NODE
        stage.fleet.kubectl.run("uncordon", SECOND_NODE)


def test_a_node_is_lost_and_returns(stage: Stage, replica: str) -> None:
    cache = find_cache()
    with fault(
        stage, "node-lost", "a node lost for a minute", cuts_streams=True, retries=LIBRARY_RETRIES, within=240
    ) as watch:
        watch.broken()
        lose_node(cache, SECOND_NODE)
        try:
            watch.wait_for_answers(2, seconds=150)
            wait_until(lambda: watch.since() > LOST_SECONDS, seconds=LOST_SECONDS, what="the node stays away")
        finally:
            return_node(cache, SECOND_NODE)
        wait_until(lambda: replica in ready_replicas(stage.fleet), seconds=150, what="the replica is ready again")
    assert stage.fleet.list("pods", NAMESPACE)
