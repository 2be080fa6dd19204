"""A double of an engine replica's serving and state ports, scripted by the test; it keeps what arrived."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson
from aiohttp import web

from lorafleet_contracts.admin import BaseState, EngineState, Tier, VersionPhase, VersionState

IDLE = EngineState(boot_id="boot", seq=1, full=True, ready=True, draining=False, base=BaseState(name="b"))


class Mood(StrEnum):
    """What the serving port does with a request."""

    ANSWER = "answer"
    LACK_VERSION = "503 + x-lorafleet-retry"
    RESET = "close the connection without an answer"
    HOLD = "no byte before the gate opens"
    CUT = "close the connection after the first part of a stream"
    FLOOD = "a stream as fast as it is taken"


@dataclass
class Arrival:
    """A request as the engine saw it; header names are lower-case."""

    headers: dict[str, str]
    header_names: list[str]
    body: dict[str, Any]


@dataclass
class EngineDouble:
    """One replica. `gate` holds the second half of streamed answers back until it is set."""

    name: str
    state_token: str
    serving: int = 0
    state_port: int = 0
    mood: Mood = Mood.ANSWER
    arrivals: list[Arrival] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request was given up by its sender."""
    flooded: int = 0
    """Bytes of floods that were taken."""
    state: EngineState = field(default_factory=lambda: IDLE)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    runners: list[web.AppRunner] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    """What both ports speak TLS with, and nothing else."""
    names: list[str | None] = field(default_factory=list)
    """The server names that handshakes asked for."""

    async def die(self) -> None:
        """Close both ports and every connection."""
        while self.runners:
            await self.runners.pop().cleanup()

    def drop(self, port: int) -> None:
        """Cut the connections at one of the two ports; new ones are taken."""
        for runner in self.runners:
            if runner.addresses[0][1] == port and runner.server is not None:
                for connection in runner.server.connections:
                    if connection.transport is not None:
                        connection.transport.abort()

    def show(self, versions: dict[str, Tier], **fields: Any) -> None:
        """Report these versions (`{uid}@{digest}`) and other fields on the state port from now on."""
        listed = []
        for key, tier in versions.items():
            uid, _, digest = key.partition("@")
            listed.append(VersionState(uid=uid, digest=digest, tier=tier, phase=VersionPhase.RESIDENT))
        update = {"seq": self.state.seq + 1, "versions": listed, **fields}
        self.state = self.state.model_copy(update=update)
        self.changed.set()
        self.changed = asyncio.Event()

    async def answer_state(self, request: web.Request) -> web.Response:
        """The long poll of the state port."""
        if request.headers.get("authorization") != f"Bearer {self.state_token}":
            return web.Response(status=401)
        if request.query.get("boot") == self.state.boot_id and int(request.query["since"]) >= self.state.seq:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), float(request.query.get("timeout", "0")))
        return web.Response(text=self.state.model_dump_json(by_alias=True), content_type="application/json")

    async def answer_serving(self, request: web.Request) -> web.StreamResponse:
        """Completions, streamed if asked for."""
        try:
            return await self._answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled.set()
            raise

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        names = [name.lower() for name in request.headers]
        self.arrivals.append(Arrival(dict(zip(names, request.headers.values(), strict=True)), names, body))
        if self.mood is Mood.RESET:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if self.mood is Mood.LACK_VERSION:
            return web.json_response({"error": {"message": "lacks"}}, status=503, headers={"x-lorafleet-retry": "1"})
        if self.mood is Mood.HOLD:
            await self.gate.wait()
        if self.mood is Mood.FLOOD:
            return await self._flood(request)
        if body.get("stream"):
            return await self._stream(request, body)
        message = {"role": "assistant", "content": f"from {self.name}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
        )

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in ("one", "two"):
            delta = {"index": 0, "delta": {"content": part}, "finish_reason": None}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
            await response.write(b"data: " + orjson.dumps({**chunk, "choices": [delta]}) + b"\n\n")
            if self.mood is Mood.CUT:
                assert request.transport is not None
                request.transport.close()
                return response
            await self.gate.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _flood(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        event = b"data: " + b"x" * 8000 + b"\n\n"
        while self.mood is Mood.FLOOD:
            await response.write(event)
            self.flooded += len(event)
        return response


@asynccontextmanager
async def run_engine(name: str, state_token: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[EngineDouble]:
    """Serve one replica on two loopback ports, by TLS with `tls`."""
    engine = EngineDouble(name, state_token, tls=tls)
    if tls is not None:
        tls.sni_callback = lambda _, asked, __: engine.names.append(asked)
    engine.gate.set()
    for attribute, method, path, handler in (
        ("serving", "POST", "/{path:.*}", engine.answer_serving),
        ("state_port", "GET", "/state", engine.answer_state),
    ):
        app = web.Application(client_max_size=1 << 25)
        app.router.add_route(method, path, handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        setattr(engine, attribute, runner.addresses[0][1])
        engine.runners.append(runner)
    try:
        yield engine
    finally:
        await engine.die()
