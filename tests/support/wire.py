"""The wire between one operator and its API server: an HTTP relay that can be cut, stalled or told to expire watches.

Used by tests of the operator at API server height. It changes nothing of what it relays and remembers what was written.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from lorafleet_kube.access import Access

EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
KEPT = ("content-type", "accept", "authorization")


@dataclass(slots=True)
class Wire:
    """`fault`: "cut" ends every connection, "stall" lets nothing through; empty: none.

    `writes` holds method, path and the API server's answer of everything but reads.
    """

    access: Access
    session: aiohttp.ClientSession
    fault: str = ""
    writes: list[tuple[str, str, int]] = field(default_factory=list)
    _expiry: asyncio.Event = field(default_factory=asyncio.Event)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def break_(self, fault: str) -> None:
        """Begin a fault, for running watches too."""
        self.fault = fault
        self._news.set()
        self._news = asyncio.Event()

    def mend(self) -> None:
        """End it. What was stalled is lost, as its senders have given up."""
        self.break_("")

    def expire(self) -> None:
        """Have every running watch end with 410."""
        self._expiry.set()
        self._expiry = asyncio.Event()

    async def relay(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on, and its answer back."""
        await self._suffer(request)
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        limits = aiohttp.ClientTimeout(total=None)
        async with self.session.request(
            request.method, self.access.server + request.path_qs, data=await request.read() or None, headers=headers,
            timeout=limits,
        ) as upstream:  # fmt: skip
            if request.method != "GET":
                self.writes.append((request.method, request.path, upstream.status))
            answer = web.StreamResponse(status=upstream.status, headers={"content-type": upstream.content_type})
            await answer.prepare(request)
            await self._stream(request, upstream.content, answer)
            return answer

    async def _stream(self, request: web.Request, source: aiohttp.StreamReader, answer: web.StreamResponse) -> None:
        while True:
            reading = asyncio.ensure_future(source.readany())
            expiry, news = (asyncio.ensure_future(each.wait()) for each in (self._expiry, self._news))
            try:
                await asyncio.wait([reading, expiry, news], return_when=asyncio.FIRST_COMPLETED)
                await self._suffer(request)
                if expiry.done() and "watch" in request.query:
                    await answer.write(orjson.dumps(EXPIRED) + b"\n")
                    return
                chunk = await reading
                if not chunk:
                    return
                await answer.write(chunk)
            finally:
                for task in (reading, expiry, news):
                    task.cancel()

    async def _suffer(self, request: web.Request) -> None:
        if self.fault == "stall":
            while self.fault == "stall":
                await self._news.wait()
            self._end(request)
        if self.fault == "cut":
            self._end(request)

    def _end(self, request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError


@asynccontextmanager
async def run_wire(access: Access, folder: Path) -> AsyncIterator[tuple[Wire, Path]]:
    """A wire to an API server, and a kubeconfig that leads through it."""
    connector = aiohttp.TCPConnector(ssl=access.tls(), limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as session:
        wire = Wire(access, session)
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", wire.relay)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            kubeconfig = folder / "wire.kubeconfig"
            kubeconfig.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}")))
            yield wire, kubeconfig
        finally:
            wire.break_("cut")
            await runner.cleanup()


def _kubeconfig(server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "wire", "cluster": {"server": server}}],
        "users": [{"name": "wire", "user": {}}],
        "contexts": [{"name": "wire", "context": {"cluster": "wire", "user": "wire"}}],
        "current-context": "wire",
    }
