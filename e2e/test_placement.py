"""Adapters that are asked for get a second replica; what is pinned or hot is answered by the other when one is lost."""

from collections.abc import Iterator

import pytest

from e2e.client import Client
from e2e.engines import POOL, engine_states, ready_replicas
from e2e.fleet import DEMO, Fleet, holds
from e2e.traffic import tapping
from e2e.waiting import wait_until
from lorafleet_contracts.admin import Tier

HOT, PINNED = "pirate", "shout"


@pytest.fixture
def placed(fleet: Fleet, acme: Client) -> Iterator[None]:
    """One adapter pinned, and a move a second; all is as before at the end."""
    fleet.patch("lorapool", POOL, {"placement": {"maxMovesPerHour": 3600}})
    fleet.patch("loraadapter", PINNED, {"pinned": True})
    yield
    fleet.patch("loraadapter", PINNED, {"pinned": None})
    fleet.patch("lorapool", POOL, {"placement": None})
    wait_until(lambda: len(ready_replicas(fleet)) == 2, seconds=240, what="both replicas are back", pause=2.0)


def tiers(fleet: Fleet, pod: str) -> dict[str, Tier]:
    """Where an engine has its versions, by their adapters' names."""
    return {each.display.name: each.tier for each in engine_states(fleet, pod)[pod].versions if each.display}


def is_on_both(fleet: Fleet, adapter: str) -> bool:
    """Whether an adapter is to be on both replicas, and is."""
    found = fleet.get("loraadapter", adapter) or {}
    return found.get("status", {}).get("replicas") == {"desired": 2, "resident": 2}


def test_hot_and_pinned_adapters_are_answered_by_the_other_replica_without_a_cold_load(
    fleet: Fleet, acme: Client, placed: None
) -> None:
    wait_until(lambda: is_on_both(fleet, PINNED), seconds=60, what="the pinned adapter on both", pause=1.0)
    with tapping(acme, HOT, PINNED, pause=0.1) as traffic:
        took = wait_until(lambda: is_on_both(fleet, HOT), seconds=150, what="the hot one on both", pause=1.0)
        print(f"\na second replica after {took:.0f} s of traffic")
        wait_until(lambda: holds(fleet.get("loraadapter", HOT), "Ready"), seconds=30, what="it is Ready")
        lost, left = sorted(ready_replicas(fleet))
        before = tiers(fleet, left)
        assert (before[HOT], before[PINNED]) == (Tier.GPU, Tier.GPU)
        answers, failed = traffic.right, len(traffic.wrong)
        fleet.kubectl.run("delete", "pod", lost, "-n", DEMO, "--grace-period=0", "--force", "--wait=false")
        wait_until(lambda: traffic.right > answers + 10, seconds=90, what="requests are answered by the other")
        after = tiers(fleet, left)
        assert (after[HOT], after[PINNED]) == (Tier.GPU, Tier.GPU), "they were there all the time"
        assert traffic.wrong[failed:] == []
        for name in (HOT, PINNED):
            assert holds(fleet.get("loraadapter", name), "Ready")
