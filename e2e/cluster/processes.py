"""Starts and stops the cluster's long-running programs; each is known again by pid, boot and start time.

Used by the light API server and by the node. Every program gets an environment mark naming its state folder; its
children (containerd's shims) inherit it, so that what a killed run left behind is found and nothing else is touched.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.commands import require_tool
from e2e.cluster.errors import AlreadyRunning, NotReady

MARK = "LORAFLEET_CLUSTER_STATE"
_START_TIME_FIELD = 19  # counted after the program's name, whose parentheses may hold anything
_STATE_FIELD = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What identifies one started process for good: a pid alone is used again."""

    pid: int
    start_time: int
    boot: str


class ProcessTable:
    """The programs of one state folder: a record and a log for each."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._records = state / "processes"
        self._logs = state / "logs"

    def start(self, name: str, command: Sequence[str | Path], *, die_with_parent: bool = False) -> None:
        """Start `command` in the background under `name`, in a session of its own, its output in `logs/NAME.log`.

        With `die_with_parent` the kernel kills it when the starting process ends, however that ends.
        Raises AlreadyRunning when `name` is alive.
        """
        if self.alive(name):
            raise AlreadyRunning(f"{name} already runs in {self._state}")
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        words = [str(word) for word in command]
        if die_with_parent:
            words = ["setpriv", "--pdeathsig", "KILL", "--", *words]
        pid = spawn(words, self.log_of(name), {**os.environ, MARK: str(self._state)})
        record = Record(pid, start_time_of(pid) or 0, current_boot())
        self._record_of(name).write_text(json.dumps(asdict(record)))

    def alive(self, name: str) -> bool:
        """Whether the process recorded as `name` still runs (a reused pid does not count)."""
        record = self._read(name)
        return record is not None and is_alive(record)

    def stop(self, name: str, grace_seconds: float = 10.0) -> None:
        """Ask `name` to end, kill it after `grace_seconds`, and forget it. Nothing happens when it isn't alive."""
        record = self._read(name)
        if record is not None:
            end_processes([record], grace_seconds)
        self._record_of(name).unlink(missing_ok=True)

    def stop_all(self, grace_seconds: float = 10.0) -> None:
        """Stop every recorded process, then every other one that carries this folder's mark, and forget them all."""
        recorded = [record for record in map(self._read, self._names()) if record is not None]
        end_processes(recorded, grace_seconds)
        end_processes(self.marked(), grace_seconds=1.0)
        shutil.rmtree(self._records, ignore_errors=True)

    def marked(self) -> list[Record]:
        """All living processes that were started for this state folder, their children included."""
        wanted = f"{MARK}={self._state}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and wanted in read_environment(entry).split(b"\0"):
                record = Record(int(entry.name), start_time_of(int(entry.name)) or 0, current_boot())
                found.append(record)
        return found

    def wait_until(self, name: str, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Poll `ready` while `name` lives. Raises NotReady with the end of its log when it dies or takes too long."""
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if not self.alive(name):
                raise NotReady(f"{name} ended early\n{self._log_tail(name)}")
            if time.monotonic() > deadline:
                raise NotReady(f"{name} was not ready after {timeout_seconds:.0f} s\n{self._log_tail(name)}")
            time.sleep(0.1)

    def log_of(self, name: str) -> Path:
        """The file that `name` writes its output to."""
        return self._logs / f"{name}.log"

    def _log_tail(self, name: str) -> str:
        lines = self.log_of(name).read_text(errors="replace").splitlines()
        return "\n".join([f"last lines of {self.log_of(name)}:", *lines[-15:]])

    def _names(self) -> list[str]:
        return [path.stem for path in self._records.glob("*.json")]

    def _record_of(self, name: str) -> Path:
        return self._records / f"{name}.json"

    def _read(self, name: str) -> Record | None:
        try:
            return Record(**json.loads(self._record_of(name).read_text()))
        except (FileNotFoundError, ValueError, TypeError):  # absent, or cut off while it was written
            return None


def spawn(words: list[str], log: Path, environment: Mapping[str, str]) -> int:
    """Start a program in a session of its own, appending its output to `log`; its pid. Raises ToolMissing.

    Not subprocess.Popen, which warns about, and later collects, children that outlive the one who started them.
    """
    require_tool(words[0])
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawnp(
        words[0],
        words,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), appending, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *((os.POSIX_SPAWN_CLOSE, number) for number in inherited_files()),
        ],
        setsid=True,
    )


def inherited_files() -> list[int]:
    """File handles that this process would pass on: a lock that its caller holds would be held for ever."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return [number for number in numbers if number > 2 and is_inheritable(number)]


def is_inheritable(number: int) -> bool:
    """Whether a program that is started would get this file handle; False for one that is closed by now."""
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


def current_boot() -> str:
    """The kernel's identity of this boot: start times count from it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time_of(pid: int) -> int | None:
    """Clock ticks from boot to the start of `pid`; None when there is no such process or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE_FIELD] == "Z" else int(fields[_START_TIME_FIELD])


def is_alive(record: Record) -> bool:
    """Whether exactly the recorded process still runs."""
    return record.boot == current_boot() and start_time_of(record.pid) == record.start_time


def read_environment(process: Path) -> bytes:
    """The NUL-separated environment of a /proc entry; empty for one that is gone or not ours to read."""
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def end_processes(records: Iterable[Record], grace_seconds: float) -> None:
    """Send SIGTERM to the living among `records`, SIGKILL after `grace_seconds`, and return once all are gone."""
    living = [record for record in records if is_alive(record)]
    for number, patience in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
        for record in living:
            _signal(record, number)
        deadline = time.monotonic() + patience
        while living and time.monotonic() < deadline:
            _reap(living)
            living = [record for record in living if is_alive(record)]
            if living:
                time.sleep(0.05)
    if living:
        raise NotReady(f"processes that cannot be ended: {[record.pid for record in living]}")


def _signal(record: Record, number: signal.Signals) -> None:
    if not is_alive(record):
        return
    try:
        os.kill(record.pid, number)
    except ProcessLookupError:
        return


def _reap(records: Iterable[Record]) -> None:
    """Collect those that are children of this very process, else they'd stay as zombies while it lives."""
    for record in records:
        try:
            os.waitpid(record.pid, os.WNOHANG)
        except ChildProcessError:
            continue
