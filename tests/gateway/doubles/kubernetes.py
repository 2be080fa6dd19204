"""A double of the API server's wire: streaming lists and watches over collections that a test changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from lorafleet_kube.paths import CONFIG_MAPS, ENDPOINT_SLICES, NAMESPACES, Kind

Object = dict[str, Any]
POOLS = Kind("lorafleet.io", "v1alpha1", "lorapools")
ADAPTERS = Kind("lorafleet.io", "v1alpha1", "loraadapters")
TENANTS = Kind("lorafleet.io", "v1alpha1", "tenants")
CREATED = "2026-01-01T00:00:00Z"
SYSTEM = "lorafleet-system"
"""The release's namespace: the only one whose ConfigMaps are there."""


class KubernetesDouble:
    """Collections by path; every change reaches all open watches."""

    def __init__(self) -> None:
        self.url = ""
        self._version = 100
        self._objects: dict[str, dict[tuple[str, str], Object]] = {
            _path(kind): {} for kind in (POOLS, ADAPTERS, TENANTS, NAMESPACES, ENDPOINT_SLICES, CONFIG_MAPS)
        }
        self._watchers: dict[asyncio.Queue[Object | None], str] = {}
        self._away = False

    def put(self, kind: Kind, found: Object) -> None:
        """Create or replace an object; missing metadata is made up."""
        self._version += 1
        metadata = {
            "namespace": "",
            "uid": f"uid-{found['metadata']['name']}",
            "creationTimestamp": CREATED,
            **found["metadata"],
            "resourceVersion": str(self._version),
        }
        key = (metadata["namespace"], metadata["name"])
        known = key in self._objects[_path(kind)]
        self._objects[_path(kind)][key] = stored = {**found, "metadata": metadata}
        self._tell(_path(kind), {"type": "MODIFIED" if known else "ADDED", "object": stored})

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove an object."""
        self._version += 1
        gone = self._objects[_path(kind)].pop((namespace, name))
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell(_path(kind), {"type": "DELETED", "object": gone})

    def go_away(self) -> None:
        """End all watches and refuse new ones."""
        self._away = True
        for queue in self._watchers:
            queue.put_nowait(None)

    def come_back(self) -> None:
        """Take watches again. What happened meanwhile is told to nobody: who asks for what came since gets 410."""
        self._away = False

    def _tell(self, path: str, event: Object) -> None:
        for queue, watched in self._watchers.items():
            if watched == path:
                queue.put_nowait(event)

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """One watch, with the initial events if asked for."""
        if self._away or request.path not in self._objects:
            return web.Response(status=503 if self._away else 404)
        if "sendInitialEvents" not in request.query and request.query["resourceVersion"] != str(self._version):
            return web.json_response({"kind": "Status", "code": 410, "reason": "Expired"}, status=410)
        queue: asyncio.Queue[Object | None] = asyncio.Queue()
        self._watchers[queue] = request.path
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            if "sendInitialEvents" in request.query:
                for found in list(self._objects[request.path].values()):
                    await _send(response, {"type": "ADDED", "object": found})
                metadata = {
                    "resourceVersion": str(self._version),
                    "annotations": {"k8s.io/initial-events-end": "true"},
                }
                await _send(response, {"type": "BOOKMARK", "object": {"metadata": metadata}})
            while event := await queue.get():
                await _send(response, event)
        finally:
            del self._watchers[queue]
        return response


def _path(kind: Kind) -> str:
    return kind.path(SYSTEM) if kind == CONFIG_MAPS else kind.path()


async def _send(response: web.StreamResponse, event: Object) -> None:
    await response.write(orjson.dumps(event) + b"\n")


@asynccontextmanager
async def run_kubernetes() -> AsyncIterator[KubernetesDouble]:
    """Serve a double on loopback."""
    double = KubernetesDouble()
    app = web.Application()
    app.router.add_get("/{path:.*}", double.watch)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    double.url = f"http://{host}:{port}"
    try:
        yield double
    finally:
        double.go_away()
        await runner.cleanup()
