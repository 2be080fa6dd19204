"""The control group that holds every pod of the local cluster, on version 1 and 2; used by node and leftovers."""

import os
import signal
import time
from pathlib import Path

from e2e.cluster.errors import NotReady

NAME = "lorafleet"
_ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """Where control groups are made: the root itself on version 2, else one folder a controller."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [folder for folder in sorted(_ROOT.iterdir()) if (folder / "cgroup.procs").exists()]


def create() -> None:
    """Make the group in every hierarchy; a new cpuset takes nobody in before it has processors and memory."""
    for hierarchy in hierarchies():
        group = hierarchy / NAME
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / setting).exists() and (group / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())


def remove(timeout_seconds: float = 10.0) -> None:
    """Kill every process in the group and remove it. Raises NotReady when some will not end."""
    deadline = time.monotonic() + timeout_seconds
    for hierarchy in hierarchies():
        group = hierarchy / NAME
        while pids := _members(group):
            for pid in pids:
                _kill(pid)
            if time.monotonic() > deadline:
                raise NotReady(f"processes of earlier pods cannot be ended: {sorted(pids)}")
            time.sleep(0.05)
        for folder, _, _ in os.walk(group, topdown=False):
            os.rmdir(folder)


def _members(group: Path) -> set[int]:
    return {int(pid) for listing in group.glob("**/cgroup.procs") for pid in listing.read_text().split()}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
