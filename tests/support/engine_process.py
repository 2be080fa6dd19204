"""Starts a whole engine (`python -m lorafleet_engine`) on free loopback ports and speaks its three ports over HTTP.

Used by the conformance suite, the long tests and those of gateway and TLS. `Engine` also stands for an engine that
runs elsewhere.
"""

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.names import HEADER_GATEWAY, HEADER_MODEL, HEADER_TENANT
from tests.support.authority import make_authority

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Engine:
    """Addresses and tokens of one engine; `process` only when it runs here."""

    serving: str
    state: str
    admin: str
    tokens: dict[PortName, str]
    process: "subprocess.Popen[bytes] | None" = None
    folder: Path | None = None
    trust: ssl.SSLContext | bool = True
    """What proves its ports, as httpx takes it, where their addresses say https."""
    extra: dict[str, str] = field(default_factory=dict)

    def headers(self, port: PortName, version: str | None = None, **more: str) -> dict[str, str]:
        """Headers of a request as the gateway or operator sends them."""
        found = {"authorization": f"Bearer {self.tokens[port]}"}
        if version is not None:
            found |= {HEADER_MODEL: version, HEADER_TENANT: "team/acme", HEADER_GATEWAY: "gateway-0"}
        return found | more

    def children(self) -> dict[str, int]:
        """Process ids of the loop and the loader by name."""
        assert self.process is not None
        found = {}
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in path.read_text().split():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"lorafleet_engine.child" in words:
                found[words[words.index(b"lorafleet_engine.child") + 1].decode()] = int(pid)
        return found


def free_ports(count: int) -> list[int]:
    """Port numbers that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


SMALL = 384 << 20
"""Bytes that are enough for an engine of the tests."""


@contextmanager
def running_engine(folder: Path, base_uri: str, *, tls: bool = False, **settings: str) -> Iterator[Engine]:
    """An engine over `folder` (caches, tokens, volumes), killed at the end. `settings`: LORAFLEET_* without prefix."""
    tokens = {name: f"{name.value}-token" for name in PortName}
    (folder / "tokens").mkdir(parents=True, exist_ok=True)
    (folder / "volumes").mkdir(exist_ok=True)
    for name, token in tokens.items():
        (folder / "tokens" / name.value).write_text(token + "\n")
    ports, scheme, trust = free_ports(3), "http", True
    if tls:
        scheme, trust = "https", _certify(folder)
        settings = {"TLS_DIR": str(folder / "tls"), **settings}
    device = os.environ.get("LORAFLEET_CONFORMANCE_DEVICE", "cpu")
    if device == "cpu":
        settings = {"MEMORY_BYTES": str(SMALL), **settings}
    environment = _environment(folder, base_uri, ports) | {
        "LORAFLEET_DEVICE": device,
        **{f"LORAFLEET_{name}": value for name, value in settings.items()},
    }
    process = subprocess.Popen([sys.executable, "-m", "lorafleet_engine"], env=environment)
    urls = [f"{scheme}://127.0.0.1:{port}" for port in ports]
    try:
        yield Engine(*urls, tokens, process, folder, trust)
    finally:
        process.kill()
        process.wait()


def wait_ready(engine: Engine, seconds: float = READY_SECONDS) -> None:
    """Wait until readyz is 200. Raises AssertionError with what the state port says otherwise."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert engine.process is None or engine.process.poll() is None, "the engine ended"
        try:
            if httpx.get(f"{engine.state}/readyz", verify=engine.trust).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not ready after {seconds} s: {get_state(engine)}")


def get_state(engine: Engine, **query: Any) -> dict[str, Any]:
    """The state port's answer."""
    headers = engine.headers(PortName.STATE)
    answer = httpx.get(f"{engine.state}/state", params=query, headers=headers, timeout=70, verify=engine.trust)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def stop(engine: Engine, seconds: float = 30.0) -> int:
    """Send SIGTERM and return the exit status."""
    assert engine.process is not None
    engine.process.send_signal(signal.SIGTERM)
    return engine.process.wait(seconds)


def _certify(folder: Path) -> ssl.SSLContext:
    """Write the pair of an engine at 127.0.0.1 into `folder`/tls; returns what clients prove it with."""
    authority = make_authority(folder / "authority")
    (folder / "tls").mkdir()
    authority.certificate.rename(folder / "tls" / "tls.crt")
    authority.key.rename(folder / "tls" / "tls.key")
    return ssl.create_default_context(cadata=authority.bundle)


def _environment(folder: Path, base_uri: str, ports: list[int]) -> dict[str, str]:
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    shelves = os.pathsep.join([*(str(ROOT / shelf) for shelf in ("contracts", "engine")), *filter(None, given)])
    return os.environ | {
        "PYTHONPATH": shelves,
        "OMP_NUM_THREADS": "1",
        "LORAFLEET_BASE_NAME": "tiny",
        "LORAFLEET_BASE_URI": base_uri,
        "LORAFLEET_BIND": "127.0.0.1",
        "LORAFLEET_SERVING_PORT": str(ports[0]),
        "LORAFLEET_STATE_PORT": str(ports[1]),
        "LORAFLEET_ADMIN_PORT": str(ports[2]),
        "LORAFLEET_TOKENS_DIR": str(folder / "tokens"),
        "LORAFLEET_VOLUMES_DIR": str(folder / "volumes"),
        "LORAFLEET_DISK_CACHE_DIR": str(folder / "disk"),
        "LORAFLEET_HOST_CACHE_DIR": str(folder / "host"),
        "LORAFLEET_HOST_CACHE_BYTES": str(64 << 20),
        "LORAFLEET_GPU_UTILIZATION_PERCENT": "20",
        "LORAFLEET_MAX_MODEL_LEN": "8192",
        "LORAFLEET_CPU_THREADS": "1",
        # Answers to equal questions are compared bit for bit, so they must be computed alike.
        "LORAFLEET_PREFIX_CACHE": "off",
    }
