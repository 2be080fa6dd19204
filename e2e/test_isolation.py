"""`isolation: Dedicated`: a tenant moves to replicas of its own, is answered there and nowhere else, and moves back."""

from collections.abc import Iterator

import pytest

from e2e.client import Client, refusal
from e2e.engines import engine_states
from e2e.fleet import DEMO, Fleet, Object, adapter
from e2e.ownpool import own_pool
from e2e.traffic import tapping
from e2e.waiting import wait_until
from lorafleet_contracts.names import LABEL_POOL, LABEL_SET, SHARED_SET, private_set

WALLED, NEIGHBOUR = "walled", "neighbour"
"""The pool, its tenant and that one's adapter; and an adapter of somebody else on the same pool."""
SPEC = {
    "replicas": {"min": 1, "max": 2, "redundancy": 0},
    "slo": {"itl": "10s"},
    "promotion": {"enabled": False, "maxDedicated": 1},
}
PAUSE_SECONDS = 0.2


@pytest.fixture
def client(fleet: Fleet, gateway: str) -> Iterator[Client]:
    """A client of a tenant that is on a shared replica with a neighbour's adapter."""
    with own_pool(fleet, gateway, WALLED, SPEC) as found:
        try:
            fleet.apply(adapter(NEIGHBOUR, source="shout", poolRef={"name": WALLED}))
            fleet.wait_ready()
            yield found
        finally:
            fleet.delete("loraadapter", NEIGHBOUR)


def status(fleet: Fleet, kind: str) -> Object:
    """What is said of the tenant, or of its adapter."""
    found: Object = (fleet.get(kind, WALLED) or {}).get("status", {})
    return found


def pod_of(fleet: Fleet, engines: str) -> str:
    """The one replica of a set."""
    [pod] = fleet.list("pods", selector=f"{LABEL_POOL}={WALLED},{LABEL_SET}={engines}")
    return str(pod["metadata"]["name"])


def adapters_on(fleet: Fleet, pod: str) -> set[str]:
    """What a replica has in its memory, by the adapters' names."""
    return {each.display.name for each in engine_states(fleet, pod, WALLED)[pod].versions if each.display}


def requests_at(fleet: Fleet, pod: str) -> int:
    """How many requests a replica has answered."""
    return sum(each.requests for each in engine_states(fleet, pod, WALLED)[pod].usage)


def switch(fleet: Fleet, isolation: str, stage: str) -> None:
    """Change the tenant's isolation and wait until that is in force."""
    fleet.patch("tenant", WALLED, {"isolation": isolation})
    wait_until(
        lambda: status(fleet, "tenant").get("promotion", {}).get("stage") == stage,
        seconds=300,
        what=f"stage {stage}",
        pause=1.0,
    )
    assert status(fleet, "tenant")["isolation"] == isolation


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_tenant_is_walled_off_and_let_out_again(fleet: Fleet, client: Client) -> None:
    own = private_set((fleet.get("tenant", WALLED) or {})["metadata"]["uid"])
    with tapping(client, WALLED, pause=PAUSE_SECONDS) as seen:
        switch(fleet, "Dedicated", "Dedicated")
        shared, walled = pod_of(fleet, SHARED_SET), pod_of(fleet, own)
        wait_until(lambda: adapters_on(fleet, shared) == {NEIGHBOUR}, seconds=60, what="it has left the shared replica")
        assert adapters_on(fleet, walled) == {WALLED}
        assert status(fleet, "loraadapter")["set"] == own
        elsewhere, before = requests_at(fleet, shared), requests_at(fleet, walled)
        wait_until(lambda: requests_at(fleet, walled) > before + 4, seconds=60, what="its own replica answers")
    assert not seen.wrong
    assert requests_at(fleet, shared) == elsewhere

    fleet.kubectl.run("delete", "pod", walled, "-n", DEMO, "--grace-period=0", "--force", "--wait=false")
    wait_until(lambda: refusal(client, WALLED) == 503, seconds=30, what="nobody else answers")
    wait_until(lambda: refusal(client, WALLED) == 200, seconds=240, what="its new replica answers")
    assert requests_at(fleet, shared) == elsewhere
    assert adapters_on(fleet, shared) == {NEIGHBOUR}

    with tapping(client, WALLED, pause=PAUSE_SECONDS) as seen:
        switch(fleet, "Shared", "Shared")
        answers = seen.right
        wait_until(lambda: seen.right > answers + 3, seconds=60, what="it is answered on the shared replica")
    assert not seen.wrong
    assert requests_at(fleet, shared) > elsewhere
