"""The real loader process, given sources or a disk tier and asked for packed adapters. Used by bench/parts/cold.py.

Its own imports, and the loader's, need the engine's server libraries: cold.py imports this module late.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.bench.catalogue import Blob
from lorafleet_engine.bench.options import DType
from lorafleet_engine.loader.disk_cache import DiskCache
from lorafleet_engine.loader.host_cache import HostCache, HostEntry
from lorafleet_engine.loader.messages import (
    AdapterFacts,
    FromLoader,
    Heartbeat,
    LoaderConfig,
    PackAdapter,
    Packed,
    ToLoader,
)
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.packed_tier import BLOB, PackedTier, fingerprint_of, write_packed

CACHE_BYTES = 1 << 40
WRITERS = 8


@dataclass(frozen=True, slots=True)
class Tiers:
    """Where a loader keeps what: packed files under `host` (in memory), its disk tier under `disk`; for which base."""

    base_dir: Path
    host: Path
    disk: Path
    dtype: DType

    def config(self) -> LoaderConfig:
        """What the loader is told."""
        return LoaderConfig(
            host_dir=str(self.host),
            host_bytes=CACHE_BYTES,
            disk_dir=str(self.disk),
            disk_bytes=CACHE_BYTES,
            volumes_dir=str(self.disk),
            dtype=self.dtype,
            base_names=(),
            target_modules=PROJECTIONS,
            base_dir=str(self.base_dir),
        )

    def empty(self) -> None:
        """Remove all that was kept."""
        for folder in (self.host, self.disk):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)


def keep_packed(tiers: Tiers, blobs: Sequence[Blob]) -> list[Path]:
    """Put packed adapters on the disk tier as a loader that packed them would have; returns their files there."""
    disk = DiskCache(tiers.disk, CACHE_BYTES)
    tier = PackedTier(disk, HostCache(tiers.host, CACHE_BYTES), fingerprint_of(tiers.config(), tiers.base_dir))

    def keep(blob: Blob) -> Path:
        digest = digest_of(blob)
        with disk.temporary() as folder:
            facts = AdapterFacts(digest, blob.ref.bytes, blob.ref.bytes, blob.rank, PROJECTIONS, "", ())
            write_packed(folder, HostEntry(facts, blob.ref, None))
            disk.admit(folder, tier.name(digest))
        with disk.using(tier.name(digest)) as kept:
            assert kept is not None
            return kept / BLOB

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(keep, blobs))


def digest_of(blob: Blob) -> str:
    """The digest under which keep_packed keeps an adapter."""
    return f"sha256:{blob.digest}"


class LoaderChild:
    """One loader process. Its host tier is empty at first, its disk tier is what it finds."""

    def __init__(self, tiers: Tiers) -> None:
        self._host = tiers.host
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "lorafleet_engine.child", "loader"]
            arguments = [str(theirs.fileno()), str(os.getpid()), "WARNING"]
            self._process = subprocess.Popen([*command, *arguments], pass_fds=[theirs.fileno()])
        self._connection: Connection[ToLoader | LoaderConfig, FromLoader] = Connection(ours.detach())
        self._connection.send(tiers.config())

    def pack(self, jobs: list[tuple[str, str]]) -> Iterator[list[Packed]]:
        """Ask for all (uri, digest) at once; yields what has come meanwhile (often nothing) until all have come.

        Raises RuntimeError when a job fails, EOFError when the loader ends.
        """
        for number, (uri, digest) in enumerate(jobs):
            self._connection.send(PackAdapter(number, Origin(uri), digest))
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
        """End the process and drop its host tier."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._host, ignore_errors=True)
