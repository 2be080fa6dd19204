"""The clocks of operators and gateways are set: an hour forward, two hours back, then right again. Nothing happens."""

import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import pytest

from e2e.faults.clock import PROGRAMS, movable_clocks, set_clocks, staying_pods
from e2e.faults.stage import Stage, fault
from e2e.fleet import adapter, condition, holds
from e2e.waiting import wait_until

pytestmark = pytest.mark.long

HOUR = 3600
SLACK_SECONDS = 120


def test_the_clocks_are_set(stage: Stage, robot: str, tmp_path: Path) -> None:
    with movable_clocks(stage, tmp_path):
        wait_until(stage.whole, seconds=60, what="the stage is set", pause=0.5)
        running = processes(stage)
        with fault(stage, "clock", "clocks set an hour forward, two back, and right again") as watch:
            watch.broken()
            for seconds in (HOUR, -HOUR, 0):
                set_clocks(stage, seconds)
                stage.fleet.apply(adapter(robot))
                wait_until(lambda: holds(stage.fleet.get("loraadapter", robot), "Ready"), seconds=60, what="it serves")
                shown = (operators_clock(stage, robot), gateways_clock(stage))
                assert all(abs(each - seconds) < SLACK_SECONDS for each in shown), f"{shown} instead of {seconds}"
                stage.fleet.delete("loraadapter", robot)
                watch.wait_for_answers(1)
        assert processes(stage) == running, "something was started anew, or another operator leads"


def operators_clock(stage: Stage, name: str) -> float:
    """Seconds that the operator is ahead of the API server, by an object that is Ready a moment after it was made."""
    made = stage.fleet.get("loraadapter", name)
    assert made
    ready, created = condition(made, "Ready")["lastTransitionTime"], made["metadata"]["creationTimestamp"]
    return (datetime.fromisoformat(ready) - datetime.fromisoformat(created)).total_seconds()


def gateways_clock(stage: Stage) -> float:
    """Seconds that Envoy is ahead of this machine."""
    date = httpx.get(stage.accounts[0].address).headers["date"]
    return parsedate_to_datetime(date).timestamp() - time.time()


def processes(stage: Stage) -> dict[str, object]:
    """The leading operator, and how often each container of operators and gateways was started."""
    found: dict[str, object] = {"leader": stage.leader()}
    for name in PROGRAMS:
        for pod in staying_pods(stage, name):
            status = pod["status"]
            each = [*status["containerStatuses"], *status.get("initContainerStatuses", [])]
            found[pod["metadata"]["name"]] = {one["name"]: one["restartCount"] for one in each}
    return found
