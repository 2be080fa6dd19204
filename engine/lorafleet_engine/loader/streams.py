"""Copies one file from a source, bounded in bytes and in time, hashed on the way. Used by the folders of sources."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError

CHUNK_BYTES = 1 << 20
SLOWEST_BYTES_PER_SECOND = 64 << 10
"""A source that sends less than this, once it had GRACE_SECONDS, would keep a thread of the loader for hours."""
GRACE_SECONDS = 60.0


class Transfer:
    """One file on its way into `target`. What has come may be thrown away (`restart`) or continued. Not thread-safe."""

    def __init__(self, name: str, target: Path, limit: int, grace: float = GRACE_SECONDS) -> None:
        self.name = name
        self.size = 0
        self._limit = limit
        self._grace = grace
        self._began = time.monotonic()
        self._sha = hashlib.sha256()
        self._sink = target.open("xb")

    def restart(self) -> None:
        """Forget what has come: the file is sent from its beginning."""
        self._sink.seek(0)
        self._sink.truncate()
        self._sha, self.size = hashlib.sha256(), 0

    def announce(self, total: int) -> None:
        """The whole file will have so many bytes. Raises JobError when that is too much."""
        if total > self._limit:
            raise JobError(ProblemCode.DOES_NOT_FIT, f"{self.name} is larger than the {self._limit} bytes allowed")

    def take(self, pieces: Iterator[bytes]) -> None:
        """Write pieces as they come. Raises JobError when there are too many, or they come too slowly."""
        for piece in pieces:
            self.announce(self.size + len(piece))
            self.size += len(piece)
            self._sha.update(piece)
            self._sink.write(piece)
            self._keep_time()

    def finish(self) -> str:
        """Close the file; its SHA-256 in hex."""
        self.close()
        return self._sha.hexdigest()

    def close(self) -> None:
        """Close the file, whole or not."""
        self._sink.close()

    def _keep_time(self) -> None:
        waited = time.monotonic() - self._began
        if waited > self._grace and self.size < waited * SLOWEST_BYTES_PER_SECOND:
            raise JobError(
                ProblemCode.SOURCE_UNREACHABLE,
                f"the source sent {self.size} bytes of {self.name} in {waited:.0f} s, which is too slow; "
                "check the server and the network to it",
            )


def plain_segment(name: str) -> str:
    """`name`, when it is a file's or a volume's and no path. Raises JobError."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise JobError(ProblemCode.SOURCE_FORBIDDEN, f"{name!r} is no plain name")
    return name
