"""A tenant gets a merged replica of its own and gives it back while it asks on; its replica dies meanwhile."""

import json
from collections.abc import Iterator

import pytest

from e2e.client import Client
from e2e.engines import engine_states
from e2e.fleet import DEMO, Fleet
from e2e.ownpool import own_pool
from e2e.traffic import tapping
from e2e.waiting import wait_until
from lorafleet_contracts.names import LABEL_SET, merged_set

SOLO = "solo"
"""The pool of this test, its tenant and its adapter."""
PROMOTION = {
    "promoteAtPercent": 5,
    "promoteAfter": "5s",
    "demoteAtPercent": 3,
    "demoteAfter": "5s",
    "maxDedicated": 1,
}
"""Of ten requests a second, which a replica is assumed to do as long as it was not seen at its limit."""
SPEC = {
    "replicas": {"min": 1, "max": 2, "redundancy": 0},
    "slo": {"itl": "10s"},
    "promotion": PROMOTION,
}
BUSY_SECONDS, IDLE_SECONDS = 0.2, 6.0
"""Between an answer and the next question: well above the thresholds, and below them."""
FALLBACK_SECONDS = 5.0


@pytest.fixture
def client(fleet: Fleet, gateway: str) -> Iterator[Client]:
    """A client of a tenant alone on a pool like the quickstart's: one engine, thresholds that a test reaches."""
    with own_pool(fleet, gateway, SOLO, SPEC) as found:
        yield found


def pods_of(fleet: Fleet, name: str) -> list[str]:
    """The pods of a set."""
    return [each["metadata"]["name"] for each in fleet.list("pods", selector=f"{LABEL_SET}={name}")]


def stage(fleet: Fleet) -> str:
    """Where the tenant stands."""
    found = fleet.get("tenant", SOLO) or {}
    return str(found.get("status", {}).get("promotion", {}).get("stage", ""))


def reach(fleet: Fleet, wanted: str, seconds: float) -> None:
    """Wait for a stage; says what the tenant's status said last."""
    try:
        wait_until(lambda: stage(fleet) == wanted, seconds=seconds, what=f"stage {wanted}", pause=1.0)
    except AssertionError as error:
        found = fleet.get("tenant", SOLO) or {}
        raise AssertionError(f"{error}: {json.dumps(found.get('status', {}).get('promotion'))}") from error


def requests_at(fleet: Fleet, pod: str) -> int:
    """How many requests an engine has answered."""
    return sum(each.requests for each in engine_states(fleet, pod, SOLO)[pod].usage)


def test_a_tenant_is_promoted_and_demoted_while_it_asks_and_survives_its_replica(fleet: Fleet, client: Client) -> None:
    tenant = fleet.get("tenant", SOLO)
    assert tenant
    own_set = merged_set(tenant["metadata"]["uid"])
    with tapping(client, SOLO, pause=BUSY_SECONDS) as traffic:
        reach(fleet, "Warming", 120)
        reach(fleet, "Dedicated", 240)
        [pod] = pods_of(fleet, own_set)
        before = requests_at(fleet, pod)
        wait_until(
            lambda: requests_at(fleet, pod) > before + 2, seconds=40, what="requests go to the tenant's own replica"
        )
        assert traffic.wrong == []

        traffic.longest = 0.0
        answers = traffic.right
        fleet.kubectl.run("delete", "pod", pod, "-n", DEMO, "--grace-period=0", "--force", "--wait=false")
        wait_until(lambda: traffic.right > answers + 5, seconds=60, what="requests are answered elsewhere")
        assert traffic.wrong == []
        assert traffic.longest < FALLBACK_SECONDS
        reach(fleet, "Dedicated", 10)

        traffic.pause = IDLE_SECONDS
        reach(fleet, "Draining", 300)
        traffic.pause = BUSY_SECONDS
        wait_until(lambda: stage(fleet) == "Shared", seconds=60, what="the tenant is on the shared set")
        answers = traffic.right
        wait_until(lambda: traffic.right > answers + 3, seconds=40, what="it is answered there")
        assert traffic.wrong == []
