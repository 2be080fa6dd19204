"""`kubectl drain`: what only the drained replica has moves to another first, and nobody notices."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from e2e.client import Client
from e2e.engines import POOL, ready_replicas
from e2e.fleet import Fleet
from e2e.leaving import LEAVING, STAYING, cold_adapters, is_going, only_on, resident, uid_of
from e2e.nodes import FIRST_NODE, SECOND_NODE, node_of, place, uncordon_all
from e2e.traffic import asking
from e2e.waiting import wait_until
from lorafleet_contracts.names import LABEL_POOL

PATIENCE_SECONDS = 300.0


@pytest.fixture
def stage(fleet: Fleet, acme: Client) -> Iterator[Fleet]:
    """One replica on each node, and some adapters with one copy each, on either of them."""
    try:
        place(fleet, {STAYING: FIRST_NODE, LEAVING: SECOND_NODE})
        with cold_adapters(fleet):
            yield fleet
    finally:
        uncordon_all(fleet)
        wait_until(lambda: len(ready_replicas(fleet)) == 2, seconds=180, what="two replicas again")


def drain(fleet: Fleet) -> subprocess.Popen[str]:
    """`kubectl drain` of the second node, under way.

    Of engines alone: the quickstart has one gateway, and e2e/faults drains a whole node below two.
    """
    own = [f"--kubeconfig={fleet.kubectl.kubeconfig}"] if fleet.kubectl.kubeconfig else []
    words = ["drain", SECOND_NODE, f"--pod-selector={LABEL_POOL}={POOL}", "--delete-emptydir-data", "--timeout=240s"]
    return subprocess.Popen(
        [str(fleet.kubectl.program), *own, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_drained_replicas_adapters_are_elsewhere_before_it_goes(stage: Fleet, acme: Client) -> None:
    alone, uid = only_on(stage, LEAVING), uid_of(stage, LEAVING)
    with asking(replace(acme, patience=PATIENCE_SECONDS)) as seen:
        with drain(stage) as draining:
            try:
                while not is_going(stage, LEAVING, uid):
                    assert draining.poll() in (None, 0), draining.stdout and draining.stdout.read()
                assert alone <= resident(stage, STAYING)
                told, _ = draining.communicate(timeout=240)
            finally:
                draining.kill()
        assert draining.returncode == 0, told
        assert "disruption budget" in told, "the budget held the eviction until the adapters had moved"
        wait_until(lambda: LEAVING in ready_replicas(stage), seconds=180, what="the replica on the other node")
    assert node_of(stage, LEAVING) == FIRST_NODE
    assert seen.right > 0
    assert not seen.wrong
