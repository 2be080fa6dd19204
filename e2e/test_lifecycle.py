"""An adapter's life on warm engines: Ready within 10 s of `kubectl apply`, 404 within 5 s of its deletion."""

from collections.abc import Iterator

import pytest

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client, refusal
from e2e.engines import adapter_bytes, holders
from e2e.fleet import Fleet, adapter, holds
from e2e.quickstart import GLOBEX
from e2e.waiting import wait_until

READY_SECONDS = 10.0
GONE_SECONDS = 5.0


@pytest.fixture
def robot(fleet: Fleet, globex: Client) -> Iterator[str]:
    """A new adapter's name; its tenant may already call it, as no order is required."""
    tenant = fleet.get("tenant", GLOBEX)
    assert tenant
    allowed = tenant["spec"]["adapters"]["names"]
    fleet.patch("tenant", GLOBEX, {"adapters": {"names": [*allowed, "robot"]}})
    yield "robot"
    fleet.delete("loraadapter", "robot")
    fleet.patch("tenant", GLOBEX, {"adapters": {"names": allowed}})


def test_a_new_adapter_serves_within_ten_seconds_and_leaves_as_fast(fleet: Fleet, globex: Client, robot: str) -> None:
    before = adapter_bytes(fleet)
    assert refusal(globex, robot) == 404
    fleet.apply(adapter(robot))
    ready = wait_until(lambda: holds(fleet.get("loraadapter", robot), "Ready"), seconds=READY_SECONDS, what="Ready")
    answering = ready + wait_until(lambda: refusal(globex, robot) == 200, seconds=5, what="an answer after Ready")
    assert style_of(globex.ask(robot, UNSEEN[1])) == robot
    assert holders(fleet, robot)
    assert sum(adapter_bytes(fleet).values()) > sum(before.values())

    fleet.delete("loraadapter", robot)
    gone = wait_until(lambda: refusal(globex, robot) == 404, seconds=GONE_SECONDS, what="404")
    freed = wait_until(lambda: adapter_bytes(fleet) == before, seconds=30, what=f"bytes back to {before}")
    assert not holders(fleet, robot)
    print(f"\nReady after {ready:.1f} s, answers after {answering:.1f} s")
    print(f"404 {gone:.1f} s and bytes back {freed:.1f} s after the deletion")


def test_a_suspended_adapter_stops_and_returns(fleet: Fleet, acme: Client) -> None:
    fleet.patch("loraadapter", "pirate", {"suspend": True})
    try:
        wait_until(lambda: refusal(acme, "pirate") in (404, 503), seconds=10, what="no answer while suspended")
    finally:
        fleet.patch("loraadapter", "pirate", {"suspend": None})
    wait_until(lambda: refusal(acme, "pirate") == 200, seconds=15, what="an answer after it returned")
    assert style_of(acme.ask("pirate", UNSEEN[0])) == "pirate"


def test_a_changed_source_is_a_new_version_without_a_gap(fleet: Fleet, acme: Client) -> None:
    """`shout` is trained on; here its files become those of poet. Every answer is wholly the old or the new one."""
    old = fleet.get("loraadapter", "shout")
    assert old
    fleet.patch("loraadapter", "shout", adapter("poet")["spec"])
    try:
        seen: set[str | None] = set()

        def new_version_answers() -> bool:
            style = style_of(acme.ask("shout", UNSEEN[0]))
            seen.add(style)
            return style == "poet"

        wait_until(new_version_answers, seconds=30, what="answers of the new version")
        assert seen <= {"shout", "poet"}
        wait_until(lambda: holds(fleet.get("loraadapter", "shout"), "Ready"), seconds=15, what="Ready")
        new = fleet.get("loraadapter", "shout")
        assert new
        assert new["status"]["digest"] != old["status"]["digest"]
    finally:
        fleet.patch("loraadapter", "shout", adapter("shout")["spec"])
    wait_until(lambda: style_of(acme.ask("shout", UNSEEN[0])) == "shout", seconds=30, what="the old version again")
