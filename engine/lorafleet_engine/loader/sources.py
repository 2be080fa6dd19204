"""Opens the folder that a source URI names: `pvc://VOLUME/path`, `file:///path`, `http(s)://host/path/`.

Called by loader/fetching.py, in the loader process only. A folder gives plain files by name and nothing else: names
never leave it, links only lead to places inside its root, redirects are refused, sizes are bounded while streaming.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

import httpx

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError

CHUNK_BYTES = 1 << 20
TIMEOUT = httpx.Timeout(30.0, connect=10.0)
SLOWEST_BYTES_PER_SECOND = 4 << 10
"""A source that sends less than this, once it had GRACE_SECONDS, would keep a thread of the loader for hours."""
GRACE_SECONDS = 60.0


class Folder(Protocol):
    """Where files are fetched from. `absence` is how this kind of source says that a file is not there."""

    absence: str

    def fetch(self, name: str, target: Path, limit: int) -> str | None:
        """Write file `name` to `target`; return its SHA-256 in hex, None when there is none. Raises JobError."""
        ...

    def changed(self) -> str | None:
        """The name of a file that is another by now than when it was fetched from here, or None. Raises JobError."""
        ...


def open_folder(uri: str, volumes_dir: Path) -> Folder:
    """The folder of a source URI. Raises JobError for a scheme or form that is not read here."""
    parts = urlsplit(uri)
    if parts.query or parts.fragment or parts.username or parts.password:
        raise JobError(ProblemCode.INVALID_REQUEST, "a source uri has no user, query or fragment")
    if parts.scheme in ("http", "https") and parts.hostname:
        return HttpFolder(uri)
    if parts.scheme == "pvc" and parts.netloc:
        return LocalFolder(volumes_dir / _plain_segment(parts.netloc), unquote(parts.path).strip("/"))
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return LocalFolder(Path(unquote(parts.path)), "")
    raise JobError(ProblemCode.INVALID_REQUEST, f"the source uri {uri!r} is none of pvc://, file:///, http(s)://")


Stamp = tuple[int | str | None, ...]


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
            with target.open("xb") as sink:
                return _copy(iter(lambda: source.read(CHUNK_BYTES), b""), sink, name, limit)

    def changed(self) -> str | None:
        """See Folder. A file that is written to, or replaced, has another stamp."""
        for name, stamp in self._fetched.items():
            with self._opened(name) as source:
                if _stamp_of(source) != stamp:
                    return name
        return None

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
        path = self.path / _plain_segment(name)
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


class HttpFolder:
    """A folder behind an HTTP server: one GET a file, no listing."""

    absence = "HTTP 404"

    def __init__(self, uri: str, grace_seconds: float = GRACE_SECONDS) -> None:
        self._uri = uri.rstrip("/") + "/"
        self._grace = grace_seconds
        self._fetched: dict[str, Stamp | None] = {}

    def fetch(self, name: str, target: Path, limit: int) -> str | None:
        """See Folder."""
        url = self._uri + _plain_segment(name)
        try:
            with (
                httpx.Client(follow_redirects=False, timeout=TIMEOUT, trust_env=False) as client,
                client.stream("GET", url, headers={"accept-encoding": "identity"}) as response,
            ):
                self._fetched[name] = _validators_of(response)
                if response.status_code == httpx.codes.NOT_FOUND:
                    return None
                _refuse_answer(response, name)
                with target.open("xb") as sink:
                    return _copy(_in_time(response.iter_raw(), name, self._grace), sink, name, limit)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise JobError(
                ProblemCode.SOURCE_UNREACHABLE, f"{name} cannot be fetched: {type(error).__name__}: {error}"
            ) from error

    def changed(self) -> str | None:
        """See Folder. Asks for heads; a server that knows none, or no validators, is believed."""
        try:
            with httpx.Client(follow_redirects=False, timeout=TIMEOUT, trust_env=False) as client:
                for name, stamp in self._fetched.items():
                    answer = client.head(self._uri + name, headers={"accept-encoding": "identity"})
                    known = answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND)
                    if known and _validators_of(answer) != stamp:
                        return name
        except httpx.HTTPError as error:
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the source went away: {type(error).__name__}") from error
        return None


def _stamp_of(source: BufferedReader | None) -> Stamp | None:
    if source is None:
        return None
    found = os.fstat(source.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _validators_of(response: httpx.Response) -> Stamp | None:
    if response.status_code == httpx.codes.NOT_FOUND:
        return None
    return tuple(response.headers.get(name) for name in ("etag", "last-modified", "content-length"))


def _refuse_answer(response: httpx.Response, name: str) -> None:
    if response.is_redirect:
        raise JobError(
            ProblemCode.SOURCE_FORBIDDEN, f"the source answers {name} with a redirect, which is not followed"
        )
    if response.status_code != httpx.codes.OK:
        raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the source answers {name} with HTTP {response.status_code}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the source sends {name} compressed although asked not to")


def _in_time(pieces: Iterator[bytes], name: str, grace: float) -> Iterator[bytes]:
    """The same pieces, as long as they come at a bearable rate after `grace` seconds. Raises JobError."""
    began, size = time.monotonic(), 0
    for piece in pieces:
        size += len(piece)
        waited = time.monotonic() - began
        if waited > grace and size < waited * SLOWEST_BYTES_PER_SECOND:
            raise JobError(
                ProblemCode.SOURCE_UNREACHABLE,
                f"the source sent {size} bytes of {name} in {waited:.0f} s, which is too slow; check the server",
            )
        yield piece


def _copy(chunks: Iterator[bytes], sink: BinaryIO, name: str, limit: int) -> str:
    sha, size = hashlib.sha256(), 0
    for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise JobError(ProblemCode.DOES_NOT_FIT, f"{name} is larger than the {limit} bytes allowed")
        sha.update(chunk)
        sink.write(chunk)
    return sha.hexdigest()


def _plain_segment(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise JobError(ProblemCode.SOURCE_FORBIDDEN, f"{name!r} is no plain name")
    return name
