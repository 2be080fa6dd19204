"""The whole engine as it is deployed: its process tree over a checkpoint, and client processes that read its streams.

Used by bench/parts/http.py. Needs the `engine` extra; what is missing ends the server, which is an error here.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.names import BASE_MODEL, HEADER_MODEL, HEADER_TENANT

START_S = 240.0
POLL_S = 0.05
TOKEN = "bench"


class ServerError(Exception):
    """The server did not start, or did not answer as asked."""


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """`volumes` holds models/NAME; `work` takes tokens and caches; `settings` are LORAFLEET_* without the prefix."""

    volumes: Path
    name: str
    work: Path
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Server:
    """One that is ready; `ready_s` is the time from the start of its process."""

    port: int
    state: int
    admin: int
    ready_s: float

    def load(self, digest: str, uri: str) -> str:
        """Bring an adapter onto the device; returns its key. Raises ServerError."""
        url = f"http://127.0.0.1:{self.admin}/admin/v1/adapters/bench/versions/{digest}"
        body = {"source": {"uri": uri}, "tier": "gpu", "display": {"namespace": "bench", "name": "bench"}}
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            asked = urllib.request.Request(url, json.dumps(body).encode(), headers, method="PUT")
            try:
                with urllib.request.urlopen(asked, timeout=90) as answer:
                    if answer.status != HTTPStatus.ACCEPTED:
                        return f"bench@{digest}"
            except urllib.error.HTTPError as error:
                raise ServerError(f"the adapter was refused: {error.read().decode()}") from error
        raise ServerError("the adapter did not come")

    def answer(
        self, bodies: Sequence[Sequence[dict[str, Any]]], processes: int, version: str = BASE_MODEL
    ) -> tuple[float, int, int]:
        """Seconds, tokens and events of all requests, one stream for each list, read by so many processes.

        Raises ServerError when a client fails.
        """
        shares = [bodies[number::processes] for number in range(processes)]
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(self._client(share, version)) for share in shares if share]
            if any(_line(client) != "ready" for client in clients):
                raise ServerError("a client could not connect")
            began = time.monotonic()
            for client in clients:
                _say(client, "go")
            found = [json.loads(_line(client) or "{}") for client in clients]
        if not all(found):
            raise ServerError("a client failed")
        seconds = max(each["ended"] for each in found) - began
        return seconds, sum(each["tokens"] for each in found), sum(each["events"] for each in found)

    def _client(self, bodies: Sequence[Sequence[dict[str, Any]]], version: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "lorafleet_engine.bench.stream_client"]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        headers = {
            "authorization": f"Bearer {TOKEN}",
            HEADER_MODEL: version,
            HEADER_TENANT: "bench",
            "content-type": "application/json",
        }
        _say(client, json.dumps({"port": self.port, "headers": headers, "bodies": bodies}))
        return client


@contextlib.contextmanager
def running_server(plan: ServerPlan) -> Iterator[Server]:
    """A server that is Ready. Raises ServerError when it ends before, or takes more than START_S."""
    serving, state, admin = _free_ports(3)
    tokens = plan.work / "tokens"
    tokens.mkdir(parents=True, exist_ok=True)
    for name in PortName:
        (tokens / name.value).write_text(TOKEN)
    settings = {
        "BASE_NAME": plan.name,
        "BASE_URI": f"pvc://models/{plan.name}",
        "BIND": "127.0.0.1",
        "SERVING_PORT": str(serving),
        "STATE_PORT": str(state),
        "ADMIN_PORT": str(admin),
        "TOKENS_DIR": str(tokens),
        "VOLUMES_DIR": str(plan.volumes),
        "DISK_CACHE_DIR": str(plan.work / "disk"),
        "HOST_CACHE_DIR": str(plan.work / "host"),
        "LOG_LEVEL": "WARNING",
        **plan.settings,
    }
    environment = os.environ | {f"LORAFLEET_{name}": value for name, value in settings.items()}
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "lorafleet_engine"], env=environment)
    try:
        _wait_ready(process, state, began + START_S)
        yield Server(serving, state, admin, time.monotonic() - began)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def _wait_ready(process: "subprocess.Popen[bytes]", port: int, deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass  # not yet
        time.sleep(POLL_S)
    raise ServerError(f"the server was not ready after {START_S:.0f} s")


def _say(client: "subprocess.Popen[str]", line: str) -> None:
    assert client.stdin is not None
    client.stdin.write(line + "\n")
    client.stdin.flush()


def _line(client: "subprocess.Popen[str]") -> str:
    assert client.stdout is not None
    return client.stdout.readline().strip()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
