"""Real servers of artifacts on loopback: SeaweedFS for S3, Debian's docker-registry with TLS and a password."""

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from lorafleet_engine.loader.origin import Credentials, Origin
from lorafleet_engine.loader.s3_site import S3Site
from tests.support.authority import Authority

WRITER = Credentials("writer-id", "writer-secret")
READER = Credentials("reader-id", "reader-secret")
START_SECONDS = 90.0
USER, PASSWORD = "acme", "s3cret-word"
BCRYPT = "$2b$04$SQQAWJGA2uulRicgEuU3NuEp8arp3JxygXmtTWnRP4kjtgj02h1YG"
"""Of PASSWORD: the only hash that docker-registry knows."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running S3 server; WRITER may do all, READER may only read objects of bucket `models`."""

    url: str

    def put(self, path: str, content: bytes = b"") -> None:
        """Make a bucket (`bucket`) or an object (`bucket/key`)."""
        url = f"{self.url}/{path}"
        signed = S3Site(Origin("s3://models/", endpoint=self.url, credentials=WRITER)).headers("PUT", url)
        httpx.put(url, content=content, headers=dict(signed), trust_env=False).raise_for_status()


@contextmanager
def run_s3_server(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS, its data in `folder`."""
    identities = [
        {"name": "writer", "credentials": _keys(WRITER), "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
        {"name": "reader", "credentials": _keys(READER), "actions": ["Read:models"]},
    ]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    ports = {name: str(free_port()) for name in ("master", "volume", "filer", "s3")}
    ports |= {f"{name}.port.grpc": str(free_port()) for name in ("master", "volume", "filer", "s3")}
    options = [f"-{name if '.' in name else f'{name}.port'}={port}" for name, port in ports.items()]
    weed = Path(sys.executable).parent / "weed"
    command = [str(weed), f"-logdir={folder}", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    server = S3Server(f"http://127.0.0.1:{ports['s3']}")

    def makes_buckets() -> bool:
        try:
            server.put("models")
        except httpx.HTTPError:
            return False
        return True

    with _running([*command, "-s3", f"-s3.config={config}", "-volume.max=8", *options], folder, makes_buckets):
        yield server


@contextmanager
def run_registry(folder: Path, authority: Authority) -> Iterator[str]:
    """docker-registry with its store in `folder`; yields its host. USER may push and pull with PASSWORD."""
    port, users = free_port(), folder / "users"
    users.write_text(f"{USER}:{BCRYPT}\n")
    config = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "store")}},
        "http": {
            "addr": f"127.0.0.1:{port}",
            "tls": {"certificate": str(authority.certificate), "key": str(authority.key)},
        },
        "auth": {"htpasswd": {"realm": "test", "path": str(users)}},
    }
    settings = folder / "registry.json"
    settings.write_text(json.dumps(config))
    program = shutil.which("docker-registry")
    assert program, "Debian's package docker-registry is missing: apt-get install docker-registry"
    with _running([program, "serve", str(settings)], folder, lambda: _listens(port)):
        yield f"127.0.0.1:{port}"


def docker_config(host: str) -> str:
    """Docker's configuration with the login for a registry."""
    pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    return json.dumps({"auths": {host: {"auth": pair}}})


def sha_of(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _keys(found: Credentials) -> list[dict[str, str]]:
    return [{"accessKey": found.access_key_id, "secretKey": found.secret_access_key}]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _running(command: Sequence[str], folder: Path, answers: Callable[[], bool]) -> Iterator[None]:
    output = (folder / "output.log").open("wb")
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{command[0]} does not come up:\n{(folder / 'output.log').read_text()[-3000:]}")
            time.sleep(0.1)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.close()
