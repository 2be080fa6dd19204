"""The picker's HTTP port for probes and Prometheus. Called by shell/service.py; answers no tenant."""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import generate_latest

from lorafleet_gateway.shell.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Probes:
    """What the port reports: `ready` for readyz; `refresh` brings gauges up to date before they are read."""

    ready: Callable[[], bool]
    refresh: Callable[[], None]
    metrics: Metrics


def build_health_app(probes: Probes) -> web.Application:
    """`/livez`, `/readyz` (503 until the first full sync) and `/metrics`."""

    async def live(_: web.Request) -> web.Response:
        return web.Response()

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if probes.ready() else 503)

    async def metrics(_: web.Request) -> web.Response:
        probes.refresh()
        return web.Response(body=generate_latest(probes.metrics.registry), content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/livez", live), web.get("/readyz", ready), web.get("/metrics", metrics)])
    return app
