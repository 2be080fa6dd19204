"""Sizes: a set follows its owner's word and its load, and nobody's request fails."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from e2e.client import Client
from e2e.engines import POOL, ready_replicas
from e2e.fleet import DEMO, Fleet, Object
from e2e.leaving import LEAVING, STAYING, cold_adapters, is_going, only_on, resident, uid_of
from e2e.ownpool import own_pool
from e2e.traffic import asking, pressing
from e2e.waiting import wait_until

OWN = "grown"
"""The pool whose size follows its load."""
SPEC = {
    "replicas": {"min": 1, "max": 2, "redundancy": 0, "scaleDownAfter": "5s"},
    "slo": {"itl": "10s"},
    "promotion": {"enabled": False},
}
"""However slow a busy machine makes the steps: an engine is full when requests wait for it, and not before."""
CLIENTS = 24
"""At one engine all but a few of them wait, which is far more than the noise of what it does a second."""
PATIENCE_SECONDS = 300.0
FEW_SECONDS = 6.0


def shared_set(fleet: Fleet, pool: str) -> Object:
    """The shared set in a pool's status."""
    found = (fleet.get("lorapool", pool) or {}).get("status", {}).get("sets", [])
    return next((each for each in found if each["name"] == "shared"), {})


def reach(fleet: Fleet, pool: str, size: int, seconds: float) -> None:
    """Wait until the pool wants that many replicas; says what its status said last."""
    try:
        wait_until(lambda: shared_set(fleet, pool).get("desired") == size, seconds=seconds, what=f"{size} wanted")
    except AssertionError as error:
        status = (fleet.get("lorapool", pool) or {}).get("status", {})
        raise AssertionError(
            f"{error}: {json.dumps({key: status.get(key) for key in ('sets', 'capacity')})}"
        ) from error


@pytest.fixture
def external(fleet: Fleet, acme: Client) -> Iterator[Fleet]:
    """The quickstart's pool, two replicas, with its size in the hands of the scale subresource."""
    fleet.patch("lorapool", POOL, {"replicas": {"min": 1, "mode": "External", "desired": 2}})
    try:
        with cold_adapters(fleet):
            yield fleet
    finally:
        fleet.patch("lorapool", POOL, {"replicas": {"min": 2, "mode": None, "desired": None}})
        wait_until(lambda: len(ready_replicas(fleet)) == 2, seconds=180, what="two replicas again")


def scale(fleet: Fleet, size: int) -> None:
    """`kubectl scale`, and the status that says whose word the size is."""
    fleet.kubectl.run("scale", "lorapool", POOL, "-n", DEMO, f"--replicas={size}")
    reach(fleet, POOL, size, seconds=30)
    assert shared_set(fleet, POOL)["message"].startswith(f"replicas.desired {size} (mode External)")


def test_kubectl_scale_moves_adapters_before_a_replica_goes_and_no_request_fails(external: Fleet, acme: Client) -> None:
    alone, uid = only_on(external, LEAVING), uid_of(external, LEAVING)
    with asking(replace(acme, patience=PATIENCE_SECONDS)) as seen:
        scale(external, 1)
        wait_until(lambda: is_going(external, LEAVING, uid), seconds=120, what="the second replica is told to end")
        assert alone <= resident(external, STAYING)
        wait_until(lambda: ready_replicas(external) == {STAYING}, seconds=120, what="one replica")
        scale(external, 2)
        wait_until(lambda: ready_replicas(external) == {STAYING, LEAVING}, seconds=240, what="two replicas")
    assert seen.right > 0
    assert not seen.wrong


@pytest.fixture
def grown(fleet: Fleet, gateway: str) -> Iterator[Client]:
    """A patient client of a pool of one engine that may become two."""
    with own_pool(fleet, gateway, OWN, SPEC) as client:
        yield replace(client, patience=PATIENCE_SECONDS)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_set_grows_under_load_and_shrinks_again_without_a_failed_request(fleet: Fleet, grown: Client) -> None:
    assert shared_set(fleet, OWN)["desired"] == 1
    with pressing(grown, OWN, CLIENTS) as pressed:
        reach(fleet, OWN, 2, seconds=240)
        assert "/s at " in shared_set(fleet, OWN)["message"], "the status has the figures"
        wait_until(lambda: len(ready_replicas(fleet, OWN)) == 2, seconds=240, what="the second is ready")
    assert pressed.right > 0
    assert not pressed.wrong
    capacity = (fleet.get("lorapool", OWN) or {})["status"]["capacity"]
    assert capacity["source"] == "Measured"
    with pressing(grown, OWN, 1, pause=FEW_SECONDS) as few:
        reach(fleet, OWN, 1, seconds=300)
        wait_until(lambda: len(ready_replicas(fleet, OWN)) == 1, seconds=180, what="the second has gone")
    assert few.right > 0
    assert not few.wrong
