"""An engine dies: under streams, and in the midst of a load. Traffic moves, and the adapters are back soon after it."""

import pytest

from e2e.engines import POOL, ready_replicas, restarts
from e2e.faults.conftest import stored
from e2e.faults.host import kill
from e2e.faults.stage import Stage, Watch, fault
from e2e.faults.store import FaultyStore
from e2e.fleet import holds
from e2e.waiting import wait_until
from lorafleet_contracts.names import LABEL_POOL

BACK_SECONDS = 10.0
"""From the replica's return to all its adapters'."""


def wait_for_return(stage: Stage, watch: Watch, victim: str, restarts_before: int) -> None:
    """The container is started again, ready, and has its adapters within BACK_SECONDS of that."""
    wait_until(lambda: restarts(stage.fleet)[victim] > restarts_before, seconds=60, what="the container is restarted")
    wait_until(lambda: victim in ready_replicas(stage.fleet), seconds=120, what="the replica is ready")
    watch.seconds["back"] = wait_until(
        lambda: stage.has_adapters(victim), seconds=BACK_SECONDS, what="its adapters are back", pause=0.1
    )


@pytest.mark.long
def test_a_process_of_the_engine_is_killed(stage: Stage) -> None:
    victim = "smol-shared-0"
    before = restarts(stage.fleet)[victim]
    with fault(stage, "engine-process", "the engine's loop killed under streams", cuts_streams=True) as watch:
        watch.broken()
        kill(victim, "lorafleet_engine.child loop")
        wait_for_return(stage, watch, victim, before)


def test_the_engines_container_is_killed(stage: Stage) -> None:
    victim = "smol-shared-1"
    before = restarts(stage.fleet)[victim]
    with fault(stage, "engine-container", "an engine's container killed under streams", cuts_streams=True) as watch:
        watch.broken()
        kill(victim, "python -m lorafleet_engine")
        wait_for_return(stage, watch, victim, before)


@pytest.mark.long
def test_the_engine_is_killed_in_the_midst_of_a_load(stage: Stage, store: FaultyStore, robot: str) -> None:
    store.mode = "slow"
    with fault(stage, "engine-loading", "an engine killed while it fetches an adapter", cuts_streams=True) as watch:
        stage.fleet.apply(stored(store, robot, robot, minReplicas=2))
        wait_until(lambda: len(store.asked) >= 2, seconds=30, what="an engine fetches the weights")
        victim = replica_at(stage, store.askers[-1])
        before = restarts(stage.fleet)[victim]
        watch.broken()
        kill(victim, "python -m lorafleet_engine")
        store.mode = "honest"
        wait_for_return(stage, watch, victim, before)
        wait_until(lambda: holds(stage.fleet.get("loraadapter", robot), "Ready"), seconds=90, what="robot is Ready")


def replica_at(stage: Stage, address: str) -> str:
    """The replica that has this address."""
    pods = stage.fleet.list("pods", selector=f"{LABEL_POOL}={POOL}")
    (found,) = (pod["metadata"]["name"] for pod in pods if pod["status"]["podIP"] == address)
    return str(found)
