"""The control groups that hold the pods: the cluster's, and in it one a node, on version 1 and 2.

Used by worker and leftovers.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from e2e.cluster.errors import NotReady

NAME = "lorafleet"
_ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """Where control groups are made: the root itself on version 2, else one folder a controller."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [folder for folder in sorted(_ROOT.iterdir()) if (folder / "cgroup.procs").exists()]


def create(name: str) -> None:
    """Make the cluster's group and, in it, `name`, in every hierarchy.

    A new cpuset takes nobody in before it has processors and memory.
    """
    for hierarchy in hierarchies():
        for group in (hierarchy / NAME, hierarchy / NAME / name):
            group.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if (group.parent / setting).exists() and (group / setting).exists():
                    (group / setting).write_text((group.parent / setting).read_text())


def end_members(name: str = "", timeout_seconds: float = 10.0) -> None:
    """Kill every process in the group `name` (default: the whole cluster's). Raises NotReady when some will not end."""
    deadline = time.monotonic() + timeout_seconds
    for hierarchy in hierarchies():
        while pids := _members(hierarchy / NAME / name):
            for pid in pids:
                _kill(pid)
            if time.monotonic() > deadline:
                raise NotReady(f"processes of pods cannot be ended: {sorted(pids)}")
            time.sleep(0.05)


def remove() -> None:
    """Kill every process in the cluster's group and remove it. Raises NotReady when some will not end."""
    end_members()
    for hierarchy in hierarchies():
        for folder, _, _ in os.walk(hierarchy / NAME, topdown=False):
            os.rmdir(folder)


def _members(group: Path) -> set[int]:
    found: set[int] = set()
    for folder, _, _ in os.walk(group):
        with suppress(OSError):  # groups of pods vanish meanwhile
            found.update(int(pid) for pid in Path(folder, "cgroup.procs").read_text().split())
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
