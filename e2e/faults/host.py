"""Breaks things from the machine's side: processes of a pod, its network and disk, the cluster's own programs.

Used by the tests here, on the local cluster only. Every pod's processes carry its name as HOSTNAME; nothing else is
touched.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.paths import Cache
from e2e.cluster.processes import ProcessTable, read_environment, start_time_of


def pod_processes(pod: str, words: str) -> list[int]:
    """Pids on this machine of a pod's processes whose command line has `words`, oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words in command and f"HOSTNAME={pod}".encode() in read_environment(entry).split(b"\0"):
            found.append(int(entry.name))
    return sorted(found, key=lambda pid: start_time_of(pid) or 0)


def kill(pod: str, words: str, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the oldest of a pod's processes whose command line has `words`."""
    found = pod_processes(pod, words)
    assert found, f"{pod} has no process {words!r}"
    os.kill(found[0], number)


@contextmanager
def refusing(pod: str, words: str, sources: list[str]) -> Iterator[None]:
    """Drop what comes from `sources` (addresses) inside the network of a pod; `words` finds one of its processes."""
    pid = str(pod_processes(pod, words)[0])
    rules = [["-s", source, "-j", "DROP"] for source in sources]
    inside = ["nsenter", "-t", pid, "-n", "iptables", "-w"]
    for rule in rules:
        run([*inside, "-I", "INPUT", *rule])
    try:
        yield
    finally:
        for rule in rules:
            run([*inside, "-D", "INPUT", *rule])


@contextmanager
def full_disk(pod: str, words: str, folder: str, free_bytes: int) -> Iterator[None]:
    """Lay a file system with no more than `free_bytes` over a folder of a pod."""
    pid = str(pod_processes(pod, words)[0])
    inside = ["nsenter", "-t", pid, "-m", "-p"]  # umount reads the mounts of its own process in /proc
    run([*inside, "mount", "-t", "tmpfs", "-o", f"size={free_bytes},mode=0777", "tmpfs", folder])
    try:
        yield
    finally:
        run([*inside, "umount", "-l", folder])


class Control:
    """The local cluster's own programs: stopped and started again with the very same command."""

    def __init__(self, cache: Cache) -> None:
        self._table = ProcessTable(cache.state)
        self._commands: dict[str, list[str]] = {}

    def stop(self, name: str) -> None:
        """Kill a program without a chance to say goodbye."""
        (record,) = [each for each in self._table.marked() if self._is(each.pid, name)]
        self._commands[name] = Path(f"/proc/{record.pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
        os.kill(record.pid, signal.SIGKILL)
        while self._table.alive(name):
            time.sleep(0.02)

    def start(self, name: str) -> None:
        """Start what was stopped."""
        self._table.start(name, self._commands.pop(name))

    @staticmethod
    def _is(pid: int, name: str) -> bool:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return command[0].decode().rpartition("/")[2] == name
