"""The artifact store is slow, hung, down or lying: what is there serves on, and each verdict says what to do."""

from pathlib import Path

import pytest

from e2e.faults.conftest import stored
from e2e.faults.stage import Stage, fault, stalled
from e2e.faults.store import FaultyStore, Mode
from e2e.fleet import Object, adapter, condition, holds
from e2e.waiting import wait_until
from lorafleet_contracts.digest import adapter_files, folder_digest

pytestmark = pytest.mark.long

HUNG = 6
"""More adapters than an engine fetches at once."""


def is_ready(stage: Stage, name: str) -> bool:
    return holds(stage.fleet.get("loraadapter", name), "Ready")


def verdict(stage: Stage, name: str) -> Object:
    return condition(stage.fleet.get("loraadapter", name), "Ready")


def test_a_store_that_hangs_holds_up_nobody_else(stage: Stage, store: FaultyStore, robot: str) -> None:
    store.mode = "hung"
    hung = [f"hung-{number}" for number in range(HUNG)]
    with fault(stage, "store-hung", "an artifact store that never answers", within=300) as watch:
        watch.broken()
        stage.fleet.apply(*[stored(store, name, "robot") for name in hung])
        wait_until(lambda: len(store.asked) >= 4, seconds=90, what="engines ask the store")
        stage.fleet.apply(adapter(robot))
        watch.seconds["others"] = wait_until(lambda: is_ready(stage, robot), seconds=60, what="robot from a good store")
        wait_until(lambda: verdict(stage, hung[0]).get("status") == "False", seconds=120, what="a verdict on the hung")
        store.mode = "honest"
        store.ended.set()
        wait_until(lambda: all(is_ready(stage, name) for name in hung), seconds=120, what="all are Ready")
        for name in hung:
            stage.fleet.delete("loraadapter", name)


def test_a_slow_store_delays_its_adapter_only(stage: Stage, store: FaultyStore) -> None:
    store.mode = "slow"
    with fault(stage, "store-slow", "an artifact store that sends 80 kB/s") as watch:
        watch.broken()
        stage.fleet.apply(stored(store, "slow", "robot"))
        wait_until(lambda: is_ready(stage, "slow"), seconds=60, what="Ready in the end")


def test_a_store_that_is_down_is_said_and_tried_again(stage: Stage, store: FaultyStore) -> None:
    for_a_while(stage, store, "error", "down", "an artifact store that is down", "503")


def test_a_store_that_cuts_connections_is_said_and_tried_again(stage: Stage, store: FaultyStore) -> None:
    for_a_while(stage, store, "cut", "cut", "an artifact store that cuts connections", "broke")


def for_a_while(stage: Stage, store: FaultyStore, mode: Mode, name: str, title: str, word: str) -> None:
    """A passing fault: told with its reason, and over by itself."""
    store.mode = mode
    with fault(stage, f"store-{name}", title) as watch:
        watch.broken()
        stage.fleet.apply(stored(store, name, "robot"))
        wait_until(lambda: word in verdict(stage, name).get("message", ""), seconds=60, what="the reason is told")
        store.mode = "honest"
        wait_until(lambda: is_ready(stage, name), seconds=90, what="Ready by itself")


def test_wrong_bytes_are_refused_and_the_old_version_serves(stage: Stage, store: FaultyStore, tmp_path: Path) -> None:
    """An update of `shout` to files of a declared digest that no engine has yet, and that are not what is sent."""
    honest = stage.fleet.get("loraadapter", "shout")
    assert honest
    store.serve_new(tmp_path, "novel")
    folder = tmp_path / "novel"
    digest = folder_digest(folder, adapter_files(folder))
    with fault(stage, "store-lying", "an artifact store that sends wrong bytes") as watch:
        watch.changed.add("loraadapters/shout")
        store.mode = "wrong-bytes"
        watch.broken()
        source = {"uri": f"{store.address}novel", "digest": digest}
        try:
            stage.fleet.patch("loraadapter", "shout", {"source": source})
            wait_until(lambda: stalled(stage.fleet, "shout"), seconds=60, what="the lie is told")
            assert "digest" in stalled(stage.fleet, "shout")
            watch.wait_for_answers(1)
            assert holds(stage.fleet.get("loraadapter", "shout"), "Available")
        finally:
            stage.fleet.patch(
                "loraadapter", "shout", {"source": {"uri": honest["spec"]["source"]["uri"], "digest": None}}
            )
        wait_until(lambda: is_ready(stage, "shout"), seconds=60, what="Ready with its own source")


def test_truncated_files_are_refused(stage: Stage, store: FaultyStore) -> None:
    store.mode = "truncated"
    with fault(stage, "store-truncated", "an artifact store with truncated files") as watch:
        watch.broken()
        stage.fleet.apply(stored(store, "short", "robot"))
        wait_until(lambda: "safetensor" in stalled(stage.fleet, "short"), seconds=60, what="the reason is told")
        store.mode = "honest"
        stage.fleet.delete("loraadapter", "short")
        stage.fleet.apply(stored(store, "short", "robot"))
        wait_until(lambda: is_ready(stage, "short"), seconds=60, what="Ready once it is whole")
