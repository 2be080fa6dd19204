"""Listens on the three ports, each with its own token gate. Started and stopped by main.py.

They speak TLS where the engine has a folder with a certificate, plain HTTP elsewhere."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from lorafleet_contracts.admin import PortName
from lorafleet_engine.server import openai_errors, problems
from lorafleet_engine.server.admin import build_admin
from lorafleet_engine.server.audit import AdminAudit
from lorafleet_engine.server.auth import TokenFile, TokenGate, TokenUses
from lorafleet_engine.server.engine import Engine
from lorafleet_engine.server.serving import build_serving
from lorafleet_engine.server.state import OPEN_PATHS, build_state
from lorafleet_engine.server.tls import TlsFolder
from lorafleet_engine.settings import PortSettings

KEEP_ALIVE_SECONDS = 300
BACKLOG = 2048


class _PortServer(uvicorn.Server):
    """uvicorn's server without its own signal handling: main.py decides what a signal means."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


class Ports:
    """The three servers. Sockets are bound at construction, so that a taken port ends the start at once."""

    def __init__(self, engine: Engine, settings: PortSettings) -> None:
        tokens = {name: TokenFile(settings.tokens_dir / name.value) for name in PortName}
        engine.metrics.registry.register(TokenUses(tokens))
        if engine.tls is not None:
            engine.metrics.registry.register(engine.tls)
        apps: list[tuple[int, ASGIApp]] = [
            (
                settings.serving,
                TokenGate(build_serving(engine), tokens[PortName.SERVING], openai_errors.refuse_token, frozenset()),
            ),
            (settings.state, TokenGate(build_state(engine), tokens[PortName.STATE], problems.refuse_token, OPEN_PATHS)),
            (
                settings.admin,
                AdminAudit(TokenGate(build_admin(engine), tokens[PortName.ADMIN], problems.refuse_token, frozenset())),
            ),
        ]
        self._sockets = [_bind(settings.bind, port) for port, _ in apps]
        self._servers = [_PortServer(_config(app, engine.tls)) for _, app in apps]

    async def serve(self) -> None:
        """Serve until stop()."""
        await asyncio.gather(*(server.serve([sock]) for server, sock in zip(self._servers, self._sockets, strict=True)))

    def stop(self) -> None:
        """Let serve() return once running responses are written."""
        for server in self._servers:
            server.should_exit = True


def _config(app: ASGIApp, tls: TlsFolder | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=1,
    )


def _bind(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock
