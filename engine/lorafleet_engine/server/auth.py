"""The gate of a port: a request without an accepted bearer token of this very port gets 401. Wraps a port's app."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lorafleet_contracts.tokens import token_matches

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
        self._tokens: list[str] = []

    def accepts(self, token: str) -> bool:
        """Whether `token` is current or a predecessor still in the file."""
        if self._clock() - self._looked >= CHECK_SECONDS:
            self._looked = self._clock()
            self._refresh()
        return token_matches(token, self._tokens)

    def _refresh(self) -> None:
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                self._tokens = [line.strip() for line in self._path.read_text().splitlines() if line.strip()]
                self._stamp = stamp
        except (OSError, UnicodeDecodeError):
            self._tokens, self._stamp = [], None


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
