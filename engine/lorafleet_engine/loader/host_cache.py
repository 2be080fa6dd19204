"""The host tier: packed blobs in shared memory by digest, bounded, those worth least out first. Loader process only.

A blob is pinned from the moment it is handed out until the api releases it, because the loop may read it meanwhile.
It starts empty: blobs of an earlier loader are removed, since their layouts are not remembered. Thread-safe.
"""

import shutil
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.eviction import Held, Usage, choose_victims
from lorafleet_engine.loader.messages import AdapterFacts
from lorafleet_engine.messages import BlobRef


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One packed adapter and what else the api must know of it."""

    facts: AdapterFacts
    blob: BlobRef
    chat_template: str | None


class HostCache:
    """Blobs under `root`, at most `limit` bytes."""

    def __init__(self, root: Path, limit: int) -> None:
        self._root = root
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: dict[str, HostEntry] = {}
        self._usage: dict[str, Usage] = {}
        self._reserved: dict[str, int] = {}
        self._pins: Counter[str] = Counter()
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)

    def take(self, digest: str) -> HostEntry | None:
        """The entry of this digest, pinned; None when it is not here."""
        with self._lock:
            entry = self._entries.get(digest)
            if entry is not None:
                self._usage[digest] = self._usage[digest].used(time.monotonic())
                self._pins[digest] += 1
            return entry

    def reserve(self, digest: str, size: int) -> Path:
        """Make room for a blob of `size` bytes and say where to write it. Raises JobError."""
        with self._lock:
            free = self._limit - self._taken()
            idle = [
                Held(name, entry.blob.bytes, self._usage[name])
                for name, entry in self._entries.items()
                if not self._pins[name]
            ]
            for other in choose_victims(idle, size - free, time.monotonic()):
                del self._usage[other]
                free += self._entries.pop(other).blob.bytes
                self._path(other).unlink(missing_ok=True)
            if free < size:
                raise JobError(
                    ProblemCode.DOES_NOT_FIT,
                    f"the host cache of {self._limit} bytes has {free} bytes for a packed adapter of {size}",
                )
            self._reserved[digest] = size
            return self._path(digest)

    def store(self, digest: str, entry: HostEntry) -> None:
        """Turn a reservation into an entry, pinned."""
        with self._lock:
            self._reserved.pop(digest)
            self._entries[digest] = entry
            self._usage[digest] = Usage(1, time.monotonic())
            self._pins[digest] += 1

    def abandon(self, digest: str) -> None:
        """Give a reservation back; does nothing once it was stored."""
        with self._lock:
            if self._reserved.pop(digest, None) is not None:
                self._path(digest).unlink(missing_ok=True)

    def release(self, digest: str) -> None:
        """Unpin once; a release that belongs to an earlier loader is ignored."""
        with self._lock:
            if self._pins[digest] > 0:
                self._pins[digest] -= 1

    def drop(self, digest: str) -> None:
        """Evict this blob unless somebody reads it."""
        with self._lock:
            if digest in self._entries and not self._pins[digest]:
                del self._entries[digest], self._usage[digest]
                self._path(digest).unlink(missing_ok=True)

    @property
    def bytes(self) -> int:
        """Bytes that are taken now, reservations included."""
        with self._lock:
            return self._taken()

    def _taken(self) -> int:
        return sum(entry.blob.bytes for entry in self._entries.values()) + sum(self._reserved.values())

    def _path(self, digest: str) -> Path:
        return self._root / f"{digest.removeprefix('sha256:')}.blob"
