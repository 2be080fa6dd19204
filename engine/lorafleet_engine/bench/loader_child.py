"""The real loader process, given sources and asked for packed adapters. Used by bench/parts/cold.py.

Its own imports, and the loader's, need the engine's server libraries: cold.py imports this module late.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.bench.options import DType
from lorafleet_engine.loader.messages import FromLoader, Heartbeat, LoaderConfig, PackAdapter, Packed, ToLoader

CACHE_BYTES = 1 << 40


class LoaderChild:
    """One loader process with empty caches: packed files under `host` (in memory), verified folders under `disk`."""

    def __init__(self, base_dir: Path, host: Path, disk: Path, dtype: DType) -> None:
        for folder in (host, disk):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self._caches = (host, disk)
        config = LoaderConfig(
            host_dir=str(host),
            host_bytes=CACHE_BYTES,
            disk_dir=str(disk),
            disk_bytes=CACHE_BYTES,
            volumes_dir=str(disk),
            dtype=dtype,
            base_names=(),
            target_modules=PROJECTIONS,
            base_dir=str(base_dir),
        )
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "lorafleet_engine.child", "loader"]
            arguments = [str(theirs.fileno()), str(os.getpid()), "WARNING"]
            self._process = subprocess.Popen([*command, *arguments], pass_fds=[theirs.fileno()])
        self._connection: Connection[ToLoader | LoaderConfig, FromLoader] = Connection(ours.detach())
        self._connection.send(config)

    def pack(self, jobs: list[tuple[str, str]]) -> Iterator[list[Packed]]:
        """Ask for all (uri, digest) at once; yields what has come meanwhile (often nothing) until all have come.

        Raises RuntimeError when a job fails, EOFError when the loader ends.
        """
        for number, (uri, digest) in enumerate(jobs):
            self._connection.send(PackAdapter(number, uri, digest))
        left = len(jobs)
        while left:
            done: list[Packed] = []
            while self._connection.poll(0):
                message = self._connection.recv()
                if isinstance(message, Packed):
                    done.append(message)
                elif not isinstance(message, Heartbeat):
                    raise RuntimeError(f"the loader failed: {message}")
            left -= len(done)
            yield done

    def close(self) -> None:
        """End the process and drop its caches."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        for folder in self._caches:
            shutil.rmtree(folder, ignore_errors=True)
