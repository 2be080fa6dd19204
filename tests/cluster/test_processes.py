"""Real processes: known again by more than their pid, ended with everything they started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.errors import AlreadyRunning, NotReady
from e2e.cluster.processes import ProcessTable, start_time_of

SLEEP = ["sleep", "60"]
STUBBORN = ["sh", "-c", "trap '' TERM; while true; do sleep 0.1; done"]
PARENT_OF_ORPHAN = ["sh", "-c", "setsid sleep 60 & sleep 60"]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ProcessTable]:
    made = ProcessTable(tmp_path)
    yield made
    made.stop_all(grace_seconds=0.1)


def recorded_pid(tmp_path: Path, name: str) -> int:
    return int(json.loads((tmp_path / "processes" / f"{name}.json").read_text())["pid"])


def wait_for_marked(table: ProcessTable, count: int) -> None:
    deadline = time.monotonic() + 5
    while len(table.marked()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_started_is_alive_until_stopped(table: ProcessTable, tmp_path: Path) -> None:
    table.start("one", SLEEP)
    pid = recorded_pid(tmp_path, "one")
    assert table.alive("one")
    table.stop("one")
    assert not table.alive("one")
    assert start_time_of(pid) is None


def test_a_lock_of_the_caller_is_not_passed_on(table: ProcessTable, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        table.start("one", SLEEP)
    (record,) = table.marked()
    held = [entry.readlink() for entry in Path(f"/proc/{record.pid}/fd").iterdir()]
    assert tmp_path / "lock" not in held


def test_a_name_runs_once(table: ProcessTable) -> None:
    table.start("one", SLEEP)
    with pytest.raises(AlreadyRunning):
        table.start("one", SLEEP)


def test_one_that_ignores_the_request_is_killed(table: ProcessTable, tmp_path: Path) -> None:
    table.start("stubborn", STUBBORN)
    pid = recorded_pid(tmp_path, "stubborn")
    table.stop("stubborn", grace_seconds=0.3)
    assert start_time_of(pid) is None


def test_a_reused_pid_is_left_alone(table: ProcessTable, tmp_path: Path) -> None:
    table.start("one", SLEEP)
    record = tmp_path / "processes" / "one.json"
    fields = json.loads(record.read_text())
    stranger = subprocess.Popen(SLEEP)
    try:
        record.write_text(json.dumps({**fields, "pid": stranger.pid, "start_time": fields["start_time"] - 1}))
        assert not table.alive("one")
        table.stop("one")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_stop_all_finds_orphans_and_lost_records(table: ProcessTable, tmp_path: Path) -> None:
    table.start("parent", PARENT_OF_ORPHAN)
    wait_for_marked(table, 3)
    os.kill(recorded_pid(tmp_path, "parent"), signal.SIGKILL)
    (tmp_path / "processes" / "parent.json").unlink()
    assert table.marked()
    table.stop_all()
    assert table.marked() == []


def test_another_folders_processes_are_left_alone(table: ProcessTable, tmp_path: Path) -> None:
    table.start("mine", SLEEP)
    ProcessTable(tmp_path / "other").stop_all()
    assert table.alive("mine")


def test_a_record_that_was_cut_off_counts_as_absent(table: ProcessTable, tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    (tmp_path / "processes" / "half.json").write_text('{"pid": 1')
    assert not table.alive("half")


def test_waiting_for_one_that_dies_shows_its_last_words(table: ProcessTable) -> None:
    table.start("brief", ["sh", "-c", "echo no luck; exit 3"])
    with pytest.raises(NotReady, match="no luck"):
        table.wait_until("brief", lambda: False, timeout_seconds=10)


def test_waiting_ends_after_its_time(table: ProcessTable) -> None:
    table.start("slow", SLEEP)
    with pytest.raises(NotReady, match="not ready after"):
        table.wait_until("slow", lambda: False, timeout_seconds=0.2)


def test_it_dies_with_the_one_who_started_it(table: ProcessTable, tmp_path: Path) -> None:
    says_when_bound = ["sh", "-c", f"touch {tmp_path}/bound; exec sleep 60"]
    script = (
        "import os, pathlib, time; from e2e.cluster.processes import ProcessTable;"
        f"folder = pathlib.Path({str(tmp_path)!r});"
        f"ProcessTable(folder).start('child', {says_when_bound!r}, die_with_parent=True);"
        "[time.sleep(0.02) for _ in range(250) if not (folder / 'bound').exists()];"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script], check=False, cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 5
    while table.alive("child"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
