"""An artifact store that fails on demand: slow, hung, down, lying, cut. Serves the trained adapters over HTTP.

Used by test_store.py. It listens on the node's address, where engine pods reach it.
"""

import json
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, Self

from e2e.assets.locate import built_assets
from e2e.cluster.places import FIRST
from lorafleet_contracts.digest import ADAPTER_CONFIG

Mode = Literal["honest", "slow", "hung", "error", "wrong-bytes", "truncated", "cut"]
SLOW_PIECE, SLOW_PAUSE = 16 << 10, 0.2


class FaultyStore:
    """`mode` holds for all requests from now on; `asked` are the paths asked for, `askers` by whom."""

    def __init__(self, server: ThreadingHTTPServer, folder: Path) -> None:
        self._server = server
        self.folder = folder
        self.mode: Mode = "honest"
        self.asked: list[str] = []
        self.askers: list[str] = []
        self.address = f"http://{FIRST.address}:{server.server_port}/"
        self.ended = threading.Event()

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Self]:
        """Serve until the block ends."""
        server = ThreadingHTTPServer((FIRST.address, 0), _Answer)
        server.daemon_threads = True
        store = cls(server, built_assets() / "adapters")
        server.store = store  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
        thread.start()
        try:
            yield store
        finally:
            store.ended.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def serve_new(self, folder: Path, name: str) -> None:
        """Serve from `folder` instead, where `name` has files that no engine has ever seen: robot's by another name."""
        copy = folder / name
        shutil.copytree(self.folder / "robot", copy)
        config = json.loads((copy / ADAPTER_CONFIG).read_text())
        (copy / ADAPTER_CONFIG).write_text(json.dumps(config | {"revision": uuid.uuid4().hex}))
        self.folder = folder


class _Answer(BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        store: FaultyStore = self.server.store  # type: ignore[attr-defined]
        store.asked.append(self.path)
        store.askers.append(self.client_address[0])
        path = store.folder / self.path.strip("/")
        if store.mode == "hung":
            store.ended.wait(120)
            return
        if store.mode == "error":
            self.send_error(503)
        elif not path.is_file():
            self.send_error(404)
        else:
            self._send(store, path)

    def _send(self, store: FaultyStore, path: Path) -> None:
        data = path.read_bytes()
        if path.suffix == ".safetensors":
            if store.mode == "wrong-bytes":
                middle = len(data) // 2
                data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            elif store.mode == "truncated":
                data = data[:-1000]
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if store.mode == "cut" and path.suffix == ".safetensors":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        elif store.mode == "slow":
            self._send_slowly(store, data)
        else:
            self.wfile.write(data)

    def _send_slowly(self, store: FaultyStore, data: bytes) -> None:
        for start in range(0, len(data), SLOW_PIECE):
            self.wfile.write(data[start : start + SLOW_PIECE])
            if store.mode == "slow":
                time.sleep(SLOW_PAUSE)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""
