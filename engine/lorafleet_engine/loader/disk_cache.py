"""The disk tier: folders by name, bounded, those worth least out first. Loader process only.

Layout under its root: `adapters/<name>/` (complete and verified; only ever renamed into place), `base/<key>/`, `tmp/`
(emptied at start). Adapters as published are named by their digest, packed ones as packed_tier.py says. What a running
job uses is never removed. Thread-safe.
"""

import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.eviction import Held, Usage, choose_victims


@dataclass(frozen=True, slots=True)
class _Entry:
    bytes: int
    usage: Usage


class DiskCache:
    """Folders under `root`, at most `limit` bytes together with the base model's."""

    def __init__(self, root: Path, limit: int) -> None:
        self._limit = limit
        self.root = root
        self._adapters, self._base, self._tmp = root / "adapters", root / "base", root / "tmp"
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        shutil.rmtree(self._tmp, ignore_errors=True)
        for folder in (self._adapters, self._base, self._tmp):
            folder.mkdir(parents=True, exist_ok=True)
        self._entries = {
            path.name: _Entry(folder_bytes(path), Usage(1, path.stat().st_mtime)) for path in self._adapters.iterdir()
        }

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """A fresh folder on the same file system, gone afterwards unless renamed away."""
        path = Path(tempfile.mkdtemp(dir=self._tmp))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def using(self, name: str) -> Iterator[Path | None]:
        """The folder of this name, kept while in use; None when it is not here."""
        key = _key(name)
        with self._lock:
            entry = self._entries.get(key)
            self._used[key] += 1
            if entry is not None:
                self._entries[key] = replace(entry, usage=entry.usage.used(time.time()))
                os.utime(self._adapters / key)
        try:
            yield None if entry is None else self._adapters / key
        finally:
            with self._lock:
                self._used[key] -= 1

    def admit(self, folder: Path, name: str) -> None:
        """Take over a verified temporary folder. Raises JobError when it cannot fit, even with all others gone."""
        size, key = folder_bytes(folder), _key(name)
        with self._lock:
            if key in self._entries:
                return
            self._make_room(size)
            folder.rename(self._adapters / key)
            self._entries[key] = _Entry(size, Usage(1, time.time()))

    def demote(self, name: str) -> None:
        """Let a folder be the first to go, because another has what it is for."""
        with self._lock:
            entry = self._entries.get(_key(name))
            if entry is not None:
                self._entries[_key(name)] = replace(entry, usage=Usage(0, time.time()))

    def remove(self, name: str) -> None:
        """Drop a folder that turned out damaged."""
        with self._lock:
            self._forget(_key(name))

    def base_folder(self, key: str) -> Path:
        """Where the base model of this key is, or would be."""
        return self._base / key

    def admit_base(self, folder: Path, key: str) -> Path:
        """Take over the base model's temporary folder and drop any other base."""
        with self._lock:
            for other in self._base.iterdir():
                self._drop(other)
            target = self.base_folder(key)
            folder.rename(target)
            self._make_room(0)
        return target

    @property
    def limit(self) -> int:
        """Bytes that all folders may take."""
        return self._limit

    @property
    def bytes(self) -> int:
        """Bytes that adapters take now, as published and packed."""
        with self._lock:
            return sum(entry.bytes for entry in self._entries.values())

    def _make_room(self, size: int) -> None:
        base = sum(folder_bytes(path) for path in self._base.iterdir())
        missing = base + sum(entry.bytes for entry in self._entries.values()) + size - self._limit
        idle = [Held(key, entry.bytes, entry.usage) for key, entry in self._entries.items() if not self._used[key]]
        for key in choose_victims(idle, missing, time.time()):
            missing -= self._entries[key].bytes
            self._forget(key)
        if missing > 0:
            raise JobError(
                ProblemCode.DOES_NOT_FIT,
                f"the disk cache of {self._limit} bytes has {max(size - missing, 0)} bytes for a folder of {size}",
            )

    def _forget(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            self._drop(self._adapters / key)

    def _drop(self, path: Path) -> None:
        """Rename first, so that a half-removed folder is never taken for a whole one."""
        if path.exists():
            grave = Path(tempfile.mkdtemp(dir=self._tmp))
            path.rename(grave / path.name)
            shutil.rmtree(grave, ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    """Sizes of the plain files directly in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _key(name: str) -> str:
    return name.removeprefix("sha256:")
