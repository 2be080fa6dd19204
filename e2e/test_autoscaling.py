"""A HorizontalPodAutoscaler with metrics-server scales a pool by the CPU of its engines, and nobody's request fails."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from e2e.client import Client
from e2e.cluster.metrics import add_metrics
from e2e.cluster.paths import REPOSITORY, find_cache
from e2e.engines import POOL, ready_replicas
from e2e.fleet import Fleet, condition
from e2e.traffic import pressing
from e2e.waiting import wait_until

MANIFEST = REPOSITORY / "examples" / "autoscaling" / "hpa.yaml"
MODEL = "pirate"
CLIENTS = 8
PATIENCE_SECONDS = 300.0
KIND = "horizontalpodautoscaler"


@pytest.fixture(scope="module")
def metered(fleet: Fleet) -> Fleet:
    """The cluster with metrics-server."""
    add_metrics(find_cache())
    return fleet


@pytest.fixture
def scaled(metered: Fleet, acme: Client) -> Iterator[Client]:
    """A patient client of the quickstart's pool, of which the example's autoscaler has one replica."""
    fleet = metered
    fleet.patch("lorapool", POOL, {"replicas": {"min": 1, "mode": "External", "desired": 1}})
    try:
        wait_until(lambda: len(ready_replicas(fleet)) == 1, seconds=180, what="one replica")
        fleet.kubectl.run("apply", "-f", str(MANIFEST))
        wait_until(lambda: usage(fleet) is not None, seconds=180, what="the autoscaler sees what the engine uses")
        yield replace(acme, patience=PATIENCE_SECONDS)
    finally:
        fleet.delete(KIND, POOL)
        fleet.patch("lorapool", POOL, {"replicas": {"min": 2, "mode": None, "desired": None}})
        wait_until(lambda: len(ready_replicas(fleet)) == 2, seconds=240, what="two replicas again")


def usage(fleet: Fleet) -> int | None:
    """Percent of the CPU they ask for that the engines use, as the autoscaler sees it; None while it sees nothing."""
    metrics = (fleet.get(KIND, POOL) or {}).get("status", {}).get("currentMetrics") or []
    found = [each["resource"]["current"].get("averageUtilization") for each in metrics if each["type"] == "Resource"]
    return found[0] if found else None


def reach(fleet: Fleet, size: int, seconds: float) -> None:
    """Wait until the pool has so many ready replicas by the autoscaler's word; tells what that said last."""
    try:
        wait_until(
            lambda: (fleet.get("lorapool", POOL) or {})["spec"]["replicas"]["desired"] == size,
            seconds=seconds,
            what=f"the autoscaler wants {size}",
            pause=1.0,
        )
        wait_until(lambda: len(ready_replicas(fleet)) == size, seconds=240, what=f"{size} ready")
    except AssertionError as error:
        raise AssertionError(f"{error}: {json.dumps((fleet.get(KIND, POOL) or {}).get('status'))}") from error


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_an_autoscaler_follows_the_cpu_of_the_engines(metered: Fleet, scaled: Client) -> None:
    quiet = usage(metered)
    assert quiet is not None
    assert quiet < 150, "one idle engine is enough"
    with pressing(scaled, MODEL, CLIENTS) as pressed:
        reach(metered, 2, seconds=240)
    assert condition(metered.get(KIND, POOL), "AbleToScale")["status"] == "True"
    with pressing(scaled, MODEL, 1, pause=10.0) as few:
        reach(metered, 1, seconds=420)
    assert pressed.right > 0
    assert few.right > 0
    assert not pressed.wrong + few.wrong
