"""The disk tier: verified adapter folders by digest, bounded, least recently used out first. Loader process only.

Layout under its root: `adapters/<hex>/` (complete and verified; only ever renamed into place), `base/<key>/`, `tmp/`
(emptied at start). What a running job uses is never removed. Thread-safe.
"""

import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError


class DiskCache:
    """Folders under `root`, at most `limit` bytes together with the base model's."""

    def __init__(self, root: Path, limit: int) -> None:
        self._limit = limit
        self._adapters, self._base, self._tmp = root / "adapters", root / "base", root / "tmp"
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        shutil.rmtree(self._tmp, ignore_errors=True)
        for folder in (self._adapters, self._base, self._tmp):
            folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """A fresh folder on the same file system, gone afterwards unless renamed away."""
        path = Path(tempfile.mkdtemp(dir=self._tmp))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def using(self, digest: str) -> Iterator[Path | None]:
        """The folder of this digest, kept while in use; None when it is not here."""
        path = self._path(digest)
        with self._lock:
            present = path.is_dir()
            self._used[digest] += 1
            if present:
                os.utime(path)
        try:
            yield path if present else None
        finally:
            with self._lock:
                self._used[digest] -= 1

    def admit(self, folder: Path, digest: str) -> None:
        """Take over a verified temporary folder. Raises JobError when it cannot fit, even with all others gone."""
        size = folder_bytes(folder)
        with self._lock:
            if self._path(digest).is_dir():
                return
            self._make_room(size)
            folder.rename(self._path(digest))

    def remove(self, digest: str) -> None:
        """Drop a folder that turned out damaged."""
        with self._lock:
            self._drop(self._path(digest))

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

    def _path(self, digest: str) -> Path:
        return self._adapters / digest.removeprefix("sha256:")

    def _make_room(self, size: int) -> None:
        base = sum(folder_bytes(path) for path in self._base.iterdir())
        folders = {path: folder_bytes(path) for path in self._adapters.iterdir()}
        free = self._limit - base - sum(folders.values())
        for path in sorted(folders, key=lambda path: path.stat().st_mtime_ns):
            if free >= size:
                return
            if not self._used[f"sha256:{path.name}"]:
                self._drop(path)
                free += folders[path]
        if free < size:
            raise JobError(
                ProblemCode.DOES_NOT_FIT,
                f"the disk cache of {self._limit} bytes has {max(free, 0)} bytes for a folder of {size}",
            )

    def _drop(self, path: Path) -> None:
        """Rename first, so that a half-removed folder is never taken for a whole one."""
        if path.exists():
            grave = Path(tempfile.mkdtemp(dir=self._tmp))
            path.rename(grave / path.name)
            shutil.rmtree(grave, ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    """Sizes of the plain files directly in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
