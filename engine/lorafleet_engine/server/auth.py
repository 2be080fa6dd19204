"""The gate of a port: a request without an accepted bearer token of this very port gets 401. Wraps a port's app."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.tokens import TOKEN_USED_METRIC, token_mark, token_matches

CHECK_SECONDS = 1.0


class TokenFile:
    """The accepted tokens of one port, one a line, read again when the file changes (a Secret mount rotates).

    No readable file means that no token is accepted.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._looked = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._used: dict[str, float] = {}

    def accepts(self, token: str) -> bool:
        """Whether `token` is in the file: the current one, its successor or its predecessor while keys rotate."""
        self._refresh()
        found = [each for each in self._used if token_matches(token, [each])]
        for each in found:
            self._used[each] = time.time()
        return bool(found)

    def uses(self) -> Mapping[str, float]:
        """When each accepted token was last used (Unix time, 0 for never), by its mark."""
        self._refresh()
        return {token_mark(token): used for token, used in self._used.items()}

    def _refresh(self) -> None:
        if self._clock() - self._looked < CHECK_SECONDS:
            return
        self._looked = self._clock()
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                tokens = [line.strip() for line in self._path.read_text().splitlines() if line.strip()]
                self._used = {token: self._used.get(token, 0.0) for token in tokens}
                self._stamp = stamp
        except (OSError, UnicodeDecodeError):
            self._used, self._stamp = {}, None


class TokenUses(Collector):
    """Which tokens the ports accept and when each was last used, by marks. `lorafleet ports rotate` waits on it."""

    def __init__(self, files: Mapping[PortName, TokenFile]) -> None:
        self._files = files

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """One family; a token that is no longer accepted has no series."""
        family = GaugeMetricFamily(
            TOKEN_USED_METRIC, "When an accepted token was last used, 0 for never", labels=("port", "token")
        )
        for port, file in self._files.items():
            for mark, used in file.uses().items():
                family.add_metric((port.value, mark), used)
        return [family]


class TokenGate:
    """ASGI middleware: `open_paths` need no token, everything else one of `tokens`."""

    def __init__(
        self, app: ASGIApp, tokens: TokenFile, refuse: Callable[[], Response], open_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._refuse = refuse
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._tokens.accepts(token.strip()):
                await self._refuse()(scope, receive, send)
                return
        await self._app(scope, receive, send)
