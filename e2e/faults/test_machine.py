"""The machine under an engine fails: its disk is full, or the operator cannot reach it. Requests go on."""

from pathlib import Path

import pytest

from e2e.engines import holders
from e2e.faults.conftest import stored
from e2e.faults.host import full_disk, refusing
from e2e.faults.stage import Stage, component, fault, stalled
from e2e.faults.store import FaultyStore
from e2e.fleet import NAMESPACE, adapter, condition, holds
from e2e.waiting import wait_until

pytestmark = pytest.mark.long

ENGINE = "python -m lorafleet_engine"
ARRIVALS = "/var/cache/lorafleet/tmp"
"""Where an engine's disk takes what is fetched, until it is verified."""
NEW = "fresh"


def test_an_engines_disk_is_full(stage: Stage, store: FaultyStore, tmp_path: Path) -> None:
    """The other replica takes what is new; what is wrong is said; the replica has the adapter once there is room."""
    store.serve_new(tmp_path, NEW)
    with fault(stage, "disk-full", "an engine's disk full while adapters arrive") as watch:
        watch.broken()
        with full_disk("smol-shared-0", ENGINE, ARRIVALS, free_bytes=256 << 10):
            stage.fleet.apply(stored(store, NEW, NEW, minReplicas=2))
            wait_until(lambda: holds(stage.fleet.get("loraadapter", NEW), "Available"), seconds=60, what="it serves")
            wait_until(lambda: "No space left" in placed(stage), seconds=60, what="the status names the disk")
            watch.wait_for_answers(1)
        wait_until(lambda: len(holders(stage.fleet, NEW)) == 2, seconds=90, what="both replicas have it")
        wait_until(lambda: not placed(stage), seconds=30, what="the status is calm again")


def test_the_network_between_operator_and_engine_is_cut(stage: Stage, robot: str) -> None:
    pods = stage.fleet.list("pods", NAMESPACE, component("operator"))
    operators = [pod["status"]["podIP"] for pod in pods]
    with fault(stage, "network-cut", "the network between operator and one engine cut") as watch:
        watch.broken()
        with refusing("smol-shared-0", ENGINE, operators):
            wait_until(lambda: holds(stage.fleet.get("lorapool", "smol"), "Degraded"), seconds=60, what="it is said")
            stage.fleet.apply(adapter(robot))
            wait_until(lambda: holds(stage.fleet.get("loraadapter", robot), "Ready"), seconds=60, what="robot is Ready")
            watch.wait_for_answers(1)
    assert not stalled(stage.fleet, robot)


def placed(stage: Stage) -> str:
    """What the status says of the new adapter's places."""
    return str(condition(stage.fleet.get("loraadapter", NEW), "Placed").get("message", ""))
