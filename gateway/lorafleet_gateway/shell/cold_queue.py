"""Lets requests wait for an adapter that no replica holds yet. Used by shell/picker.py, woken by shell/states.py.

Each adapter has its own, short line, so that cold ones never hold up others; all lines together are bounded in requests
and in bytes, because Envoy keeps the bodies of those who wait.
"""

import asyncio
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from lorafleet_gateway.core.rejections import adapter_not_ready, adapter_queue_full


@dataclass(frozen=True, slots=True)
class ColdLimits:
    """How much may wait: seconds for one request, requests for one adapter, requests and body bytes in all."""

    seconds: float
    per_adapter: int = 32
    requests: int = 256
    body_bytes: int = 64 << 20


@dataclass(slots=True)
class _Line:
    waiting: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class ColdQueue:
    """The lines of one gateway instance."""

    def __init__(self, limits: ColdLimits) -> None:
        self._limits = limits
        self._lines: dict[str, _Line] = {}
        self._bytes = 0

    @property
    def seconds(self) -> float:
        """How long one request may wait."""
        return self._limits.seconds

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return sum(line.waiting for line in self._lines.values())

    async def wait(self, version: str, name: str, body_bytes: int, until: float) -> None:
        """Wait until there may be a replica for `version`, or the table changed.

        `until` is a time of the event loop; `name` is what the client calls the adapter. Raises Rejection (503) when
        the line is full or the time is up.
        """
        with self._stand(version, name, body_bytes) as line, suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await line.news.wait()
            return
        raise adapter_not_ready(name)

    def arrived(self, versions: Container[str]) -> None:
        """Wake those who wait for any of `versions`, which some replica holds."""
        for version, line in self._lines.items():
            if version in versions:
                line.news.set()

    def wake_all(self) -> None:
        """Let everybody look at a new table."""
        for line in self._lines.values():
            line.news.set()

    @contextmanager
    def _stand(self, version: str, name: str, body_bytes: int) -> Iterator[_Line]:
        line = self._lines.get(version)
        if line is None or line.news.is_set():  # those who were woken leave the old line behind
            line = self._lines[version] = _Line()
        full = line.waiting >= self._limits.per_adapter or self.waiting >= self._limits.requests
        if full or self._bytes + body_bytes > self._limits.body_bytes:
            self._drop(version, line)
            raise adapter_queue_full(name)
        line.waiting += 1
        self._bytes += body_bytes
        try:
            yield line
        finally:
            line.waiting -= 1
            self._bytes -= body_bytes
            self._drop(version, line)

    def _drop(self, version: str, line: _Line) -> None:
        if not line.waiting and self._lines.get(version) is line:
            del self._lines[version]
