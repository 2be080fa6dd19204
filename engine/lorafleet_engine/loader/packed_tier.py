"""Packed adapters on the disk tier, so that one that was packed before is read once, in order, and never parsed again.

Called by jobs.py. A folder is named by the adapter's digest and a fingerprint of all that packing depends on; it holds
`blob`, the bytes of the host tier, and `entry.json`, which says what they are and how to tell that they are whole. What
turns out damaged is dropped, and packed anew.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.disk_cache import DiskCache
from lorafleet_engine.loader.host_cache import HostCache, HostEntry
from lorafleet_engine.loader.messages import AdapterFacts, LoaderConfig
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.model.config import read_config

LAYOUT = 2
"""To be raised whenever adapters/ writes other bytes for the same adapter, or judges it otherwise."""
CHUNK_BYTES = 8 << 20
BLOCK_WORDS = 8192
BLOB, ENTRY = "blob", "entry.json"


class DamagedError(Exception):
    """A kept blob is not what was written."""


class Checksum:
    """Tells damage from the bytes, fed in order: SHA-256 over the sums of blocks of 64-bit words. As fast as memory,
    and enough against a disk; that the adapter is the right one was judged by its digest before it was packed."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def update(self, data: memoryview) -> None:
        """Feed some bytes; all but the last feed are CHUNK_BYTES long."""
        whole = len(data) // (8 * BLOCK_WORDS) * (8 * BLOCK_WORDS)
        if whole:
            words = np.frombuffer(data[:whole], dtype=np.uint64).reshape(-1, BLOCK_WORDS)
            self._sha.update(np.add.reduce(words, axis=1).tobytes())
        self._sha.update(data[whole:])

    @property
    def value(self) -> str:
        """The checksum of what was fed."""
        return self._sha.hexdigest()


@dataclass(frozen=True, slots=True)
class PackedTier:
    """Moves packed adapters between the disk and the host tier. `fingerprint` is that of fingerprint_of."""

    disk: DiskCache
    host: HostCache
    fingerprint: str

    def name(self, digest: str) -> str:
        """The folder of a packed adapter."""
        return f"{digest}.{self.fingerprint}"

    def restore(self, digest: str) -> HostEntry | None:
        """Read a packed adapter back to the host tier, pinned; None when it is not here, or damaged.

        Raises JobError when the host tier has no room.
        """
        with self.disk.using(self.name(digest)) as folder:
            if folder is None:
                return None
            try:
                return self._read(folder, digest)
            except (OSError, ValueError, KeyError, TypeError, DamagedError):
                damaged = True
        if damaged:
            self.disk.remove(self.name(digest))
        return None

    def keep(self, digest: str) -> None:
        """Write what the host tier has of this digest to the disk tier, unless it is there or does not fit."""
        with self.disk.using(self.name(digest)) as folder:
            known = folder is not None
        entry = None if known else self.host.take(digest)
        if entry is None:
            return
        try:
            with self.disk.temporary() as folder:
                write_packed(folder, entry)
                self.disk.admit(folder, self.name(digest))
            self.disk.demote(digest)
        except (OSError, DamagedError, JobError):
            return  # the adapter stays as published, which is all that a cold start needs
        finally:
            self.host.release(digest)

    def _read(self, folder: Path, digest: str) -> HostEntry:
        kept = json.loads((folder / ENTRY).read_text())
        facts = AdapterFacts(**{name: _frozen(value) for name, value in kept["facts"].items()})
        path = self.host.reserve(digest, facts.bytes)
        try:
            if _copy(folder / BLOB, path, facts.bytes) != kept["checksum"]:
                raise DamagedError
            blob = BlobRef(str(path), facts.bytes, kept["dtype"], facts.rank, _frozen(kept["module_ranks"]))
            entry = HostEntry(facts, blob, kept["chat_template"])
            self.host.store(digest, entry)
        finally:
            self.host.abandon(digest)
        return entry


def fingerprint_of(config: LoaderConfig, base_dir: Path) -> str:
    """All that the packed bytes, and the judgement that they may be served, depend on beside the adapter's digest."""
    shape, pool = asdict(read_config(base_dir).shape), (config.target_modules, config.base_names)
    on = [LAYOUT, config.dtype, config.tensor_parallel, shape, pool]
    return hashlib.sha256(json.dumps(on, sort_keys=True).encode()).hexdigest()[:16]


def write_packed(folder: Path, entry: HostEntry) -> None:
    """Write a packed adapter's folder. Raises OSError, DamagedError, JobError."""
    checksum = _copy(Path(entry.blob.path), folder / BLOB, entry.blob.bytes)
    kept = {
        "facts": asdict(entry.facts),
        "dtype": entry.blob.dtype,
        "module_ranks": entry.blob.module_ranks,
        "chat_template": entry.chat_template,
        "checksum": checksum,
    }
    (folder / ENTRY).write_text(json.dumps(kept))


def _copy(source: Path, target: Path, size: int) -> str:
    """Copy a file of `size` bytes in large sequential reads; returns its checksum.

    Raises OSError or DamagedError for what is read, JobError when there is no room to write.
    """
    checksum = Checksum()
    with source.open("rb", buffering=0) as reading, _mapped(target, size) as memory:
        os.posix_fadvise(reading.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        for start in range(0, size, CHUNK_BYTES):
            with memory[start : start + CHUNK_BYTES] as part:
                if os.preadv(reading.fileno(), [part], start) != len(part):
                    raise DamagedError
                checksum.update(part)
    return checksum.value


@contextmanager
def _mapped(path: Path, size: int) -> Iterator[memoryview]:
    """A new file of `size` bytes, allocated, as memory to write to. Raises JobError."""
    with path.open("x+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise JobError(ProblemCode.DOES_NOT_FIT, f"no room for {size} bytes in {path.parent}: {error}") from error
        with mmap.mmap(file.fileno(), size) as mapping, memoryview(mapping) as memory:
            yield memory


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
