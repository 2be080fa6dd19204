"""A folder on a mounted volume: `pvc://VOLUME/path` and `file:///path`. Opened by loader/sources.py.

Names never leave it; links only lead to places inside its root.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.streams import CHUNK_BYTES, Transfer, plain_segment

Stamp = tuple[int, ...]


class LocalFolder:
    """A folder on a mounted volume. Everything read from it lies under `root`, whatever links say."""

    absence = "no such file"

    def __init__(self, root: Path, below: str) -> None:
        self._root = Path(os.path.realpath(root))
        self.path = Path(os.path.realpath(self._root / below))
        self._fetched: dict[str, Stamp | None] = {}
        if not self.path.is_relative_to(self._root):
            raise JobError(ProblemCode.SOURCE_FORBIDDEN, f"the path {below!r} leaves its volume")
        if not self.path.is_dir():
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"there is no folder {below or root.name!r} in this source")

    def fetch(self, name: str, target: Path, limit: int) -> str | None:
        """See Folder."""
        with self._opened(name) as source:
            self._fetched[name] = _stamp_of(source)
            if source is None:
                return None
            transfer = Transfer(name, target, limit)
            try:
                transfer.take(iter(lambda: source.read(CHUNK_BYTES), b""))
                return transfer.finish()
            finally:
                transfer.close()

    def changed(self) -> str | None:
        """See Folder. A file that is written to, or replaced, has another stamp."""
        for name, stamp in self._fetched.items():
            with self._opened(name) as source:
                if _stamp_of(source) != stamp:
                    return name
        return None

    def close(self) -> None:
        """See Folder."""

    def digest(self, name: str) -> str | None:
        """SHA-256 of a file in place, None when there is none. Raises JobError."""
        with self._opened(name) as source:
            return None if source is None else hashlib.file_digest(source, "sha256").hexdigest()

    def check(self, name: str) -> bool:
        """Whether file `name` is there and may be read in place. Raises JobError for one outside the root."""
        with self._opened(name) as source:
            return source is not None

    @contextmanager
    def _opened(self, name: str) -> Iterator[BufferedReader | None]:
        path = self.path / plain_segment(name)
        try:
            # Non-blocking, so that a FIFO planted under the name cannot hang the loader.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"{name} cannot be read: {error.strerror}") from error
        with os.fdopen(descriptor, "rb") as source:
            # The opened file itself is asked where it lies: no link can be swapped after the check.
            if not Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(self._root):
                raise JobError(ProblemCode.SOURCE_FORBIDDEN, f"{name} is a link that leaves its volume")
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise JobError(ProblemCode.SOURCE_FORBIDDEN, f"{name} is not a plain file")
            yield source


def _stamp_of(source: BufferedReader | None) -> Stamp | None:
    if source is None:
        return None
    found = os.fstat(source.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
