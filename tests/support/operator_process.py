"""The operator as a process of its own, as the Deployment runs it. Called by tests only."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELVES = ("contracts", "kube", "operator")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds and the largest resident memory (MiB) of a process."""

    cpu_seconds: float
    peak_rss_mb: float


class OperatorProcess:
    """One life of the operator; `start` after `stop` or `kill` begins another."""

    def __init__(self, kubeconfig: Path, namespace: str, name: str = "operator-0", **environment: str) -> None:
        self.namespace = namespace
        self.health_port = _free_port()
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(str(ROOT / shelf) for shelf in SHELVES),
            "KUBECONFIG": str(kubeconfig),
            "LORAFLEET_NAMESPACE": namespace,
            "LORAFLEET_POD_NAME": name,
            "LORAFLEET_ENGINE_IMAGE": "registry.test/engine:1",
            "LORAFLEET_HEALTH_PORT": str(self.health_port),
            **environment,
        }
        self._log = Path(tempfile.mkdtemp()) / f"{name}.log"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin a life."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lorafleet_operator"],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def stop(self) -> int:
        """SIGTERM, as the kubelet does; returns the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL."""
        return self._end(signal.SIGKILL)

    def wait(self, seconds: float) -> int:
        """The exit status of a process that ends by itself."""
        assert self._process is not None
        return self._process.wait(seconds)

    @contextlib.asynccontextmanager
    async def restarted_when_it_ends(self) -> AsyncIterator[None]:
        """Start it again whenever it ends by itself: the kubelet's part, where a test lets it lose its Lease."""

        async def keep() -> None:
            while True:
                if self.ended:
                    self.start()
                await asyncio.sleep(0.2)

        keeper = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process is None or self._process.poll() is not None

    @property
    def log(self) -> str:
        """All that was printed in all lives."""
        return self._log.read_text()

    def usage(self) -> "Usage":
        """What this life has taken so far; nothing when it has ended."""
        if self._process is None or self._process.poll() is not None:
            return Usage(0.0, 0.0)
        process = Path("/proc") / str(self._process.pid)
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        [peak] = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM")]
        ticks = int(fields[11]) + int(fields[12])
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), int(peak.split()[1]) / 1024)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        try:
            return self._process.wait(20)
        finally:
            self._process.kill()
            self._process = None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
