"""An API server for tests of commands: objects from a dictionary over real HTTP, port forwarding to any local port.

It runs in a thread, since commands have an event loop of their own. It knows lists (by labels, and events by the object
they are about), single objects (and takes new ones in their place, by resourceVersion), events that are put beside an
object, and websockets on pods/portforward; all else is 404 or 403, as told.
"""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

Object = dict[str, Any]
PROTOCOL = "v4.channel.k8s.io"


@dataclass
class FakeApi:
    """`objects` by path of the single object; `ports` are local ports by pod name; `forbidden` are path prefixes."""

    objects: dict[str, Object] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    forbidden: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    kubeconfig: Path = Path()

    def add(self, plural: str, found: Object, group: str = "/apis/lorafleet.io/v1alpha1") -> None:
        """Have one object."""
        meta = found["metadata"]
        self.objects[f"{group}/namespaces/{meta['namespace']}/{plural}/{meta['name']}"] = found

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        path = request.path
        self.asked.append(request.path_qs)
        if path.startswith(self.forbidden) and self.forbidden:
            return self._status(403, "Forbidden", f"user may not read {path}")
        if path.endswith("/portforward"):
            return await self._forward(request, path.split("/")[-2])
        if path in self.objects:
            if request.method == "PUT" and not self._replace(path, await request.json()):
                return self._status(409, "Conflict", f"{path} has changed")
            return web.json_response(self.objects[path])
        if request.method == "POST" and path.endswith("/events"):
            self.events.append(await request.json())
        items = [each for key, each in self.objects.items() if self._listed(key, path) and self._wanted(each, request)]
        if items or path.split("/")[-1] in ("lorapools", "loraadapters", "tenants", "pods", "events"):
            return web.json_response({"kind": "List", "metadata": {}, "items": items})
        return self._status(404, "NotFound", f"{path} not found")

    def _replace(self, path: str, body: Object) -> bool:
        seen, kept = (each["metadata"].get("resourceVersion") for each in (body, self.objects[path]))
        if seen is not None and seen != kept:
            return False
        meta = body["metadata"] if kept is None else {**body["metadata"], "resourceVersion": str(int(kept) + 1)}
        self.objects[path] = {**body, "metadata": meta}
        return True

    def _listed(self, key: str, path: str) -> bool:
        home, _, _ = key.rpartition("/")
        if home == path:
            return True
        group, _, plural = path.rpartition("/")
        return home.startswith(f"{group}/namespaces/") and home.endswith(f"/{plural}")

    def _wanted(self, found: Object, request: web.Request) -> bool:
        name, _, value = request.query.get("labelSelector", "").partition("=")
        labels = found["metadata"].get("labels", {})
        if name and (labels.get(name) != value if value else name not in labels):
            return False
        name, _, value = request.query.get("fieldSelector", "").partition("=")
        return not name or found.get("involvedObject", {}).get("uid") == value

    def _status(self, code: int, reason: str, message: str) -> web.Response:
        return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)

    async def _forward(self, request: web.Request, pod: str) -> web.StreamResponse:
        if pod not in self.ports:
            return self._status(404, "NotFound", f"pod {pod} not found")
        socket = web.WebSocketResponse(protocols=[PROTOCOL])
        await socket.prepare(request)
        port = int(request.query["ports"]).to_bytes(2, "little")
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + port)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[pod])

        async def back() -> None:
            while chunk := await reader.read(65536):
                await socket.send_bytes(b"\0" + chunk)

        task = asyncio.create_task(back())
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                assert message.data[0] == 0
                writer.write(message.data[1:])
        task.cancel()
        writer.close()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return socket


@contextmanager
def run_in_thread(
    app: web.Application, host: str = "127.0.0.1", number: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """An application on a local port, any that is free for 0; by plain HTTP without `tls`."""
    ready, stop, ports = threading.Event(), asyncio.Event(), []

    async def serve() -> None:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, host, number, ssl_context=tls).start()
        ports.append(runner.addresses[0][1])
        ready.set()
        await stop.wait()
        await runner.cleanup()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@contextmanager
def run_fake_api(folder: Path, namespace: str = "demo") -> Iterator[FakeApi]:
    """A fake and a kubeconfig whose context names `namespace`."""
    fake = FakeApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    with run_in_thread(app) as port:
        fake.kubeconfig = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "current-context": "c",
        }
        fake.kubeconfig.write_text(json.dumps(config))
        yield fake
