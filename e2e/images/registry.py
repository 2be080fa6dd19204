"""A registry on the loopback through which images reach containerd layer by layer; runs only while images move."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.processes import ProcessTable

_PORT = 5599
ADDRESS = f"127.0.0.1:{_PORT}"


@contextmanager
def serve_registry(folder: Path) -> Iterator[str]:
    """Run the registry over the store in `folder`; yields its address. Raises NotReady when it does not come up.

    Afterwards its store is rid of what no tag names any more: of every image the last one pushed stays.
    """
    processes = ProcessTable(folder / "registry-run")
    processes.stop_all()
    settings = folder / "registry.json"
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}, "delete": {"enabled": True}},
        "http": {"addr": ADDRESS},
    }
    settings.write_text(json.dumps(config))
    processes.start("registry", ["docker-registry", "serve", settings])
    try:
        processes.wait_until("registry", _answers, timeout_seconds=20)
        yield ADDRESS
    finally:
        processes.stop_all()
    run(["docker-registry", "garbage-collect", "--delete-untagged", settings])


def _answers() -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", _PORT)) == 0
