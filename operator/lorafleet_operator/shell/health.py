"""The health and metrics endpoint. Started by main.py; tells states, changes none."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from lorafleet_operator.shell.metrics import Metrics


@asynccontextmanager
async def serve_health(port: int, ready: Callable[[], bool], metrics: Metrics) -> AsyncIterator[int]:
    """Serve /livez, /readyz and /metrics on all addresses; yields the port (another one for 0)."""

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readiness(_: web.Request) -> web.Response:
        return web.Response(text="ok") if ready() else web.Response(status=503, text="not synced yet")

    async def figures(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"content-type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/livez", live), web.get("/readyz", readiness), web.get("/metrics", figures)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, None, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
