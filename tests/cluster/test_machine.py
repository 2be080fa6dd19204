"""The checks that stop a run before it starts anything."""

import threading
import time
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterBusy, DiskTooSmall
from e2e.cluster.machine import check_disk, hold_machine


def test_two_runs_never_share_the_machine(tmp_path: Path) -> None:
    lock = tmp_path / "cache" / "lock"
    with hold_machine(lock), pytest.raises(ClusterBusy, match="another run"), hold_machine(lock, patience_seconds=0.1):
        pass
    with hold_machine(lock, patience_seconds=0):
        pass


def test_a_run_waits_for_the_one_before_it(tmp_path: Path) -> None:
    lock, order = tmp_path / "lock", list[str]()

    def follow() -> None:
        with hold_machine(lock, patience_seconds=10):
            order.append("second")

    with hold_machine(lock):
        follower = threading.Thread(target=follow)
        follower.start()
        time.sleep(0.2)
        order.append("first")
    follower.join()
    assert order == ["first", "second"]


def test_a_disk_that_is_too_small_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(DiskTooSmall, match=r"building needs 1000000 GB free under .*LORAFLEET_CACHE"):
        check_disk(tmp_path, 1_000_000, "building")
    check_disk(tmp_path / "new", 0, "building")
