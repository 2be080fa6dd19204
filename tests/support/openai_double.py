"""A stand-in for any OpenAI-compatible server, over real HTTP on loopback, with delays and faults that a test sets.

It streams as vLLM does: one event a token, usage last, then [DONE]. Runs in a thread of its own.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

BASE = "base-model"


@dataclass(slots=True)
class Double:
    """What it serves and how. `first_s` is the time to the first token, by model where that is named; `gap_s` between
    tokens; `slots` requests at a time (0: no bound), others wait. `faults` by model: an HTTP status, "cut" (the stream
    ends early), "garbage" (no JSON), "error" (an error event) or "silent" (nothing ever comes)."""

    adapters: int = 20
    first_s: float = 0.0
    gap_s: float = 0.0
    slots: int = 0
    key: str = ""
    lists: bool = True
    slow: dict[str, float] = field(default_factory=dict)
    faults: dict[str, int | str] = field(default_factory=dict)
    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    stall_s: float = 0.0
    """So long the whole server stands still when its tenth request comes."""

    def names(self) -> list[str]:
        """Its adapters."""
        return [f"adapter-{number:03d}" for number in range(self.adapters)]

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        if refused := self._refused(request):
            return refused
        if not self.lists:
            return web.json_response({"detail": "Not Found"}, status=404)
        data = [{"id": BASE, "object": "model"}]
        data += [{"id": name, "object": "model", "parent": BASE} for name in self.names()]
        return web.json_response({"object": "list", "data": data})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """POST of a completion, or of a chat."""
        self.arrived.append(time.perf_counter())
        if refused := self._refused(request):
            return refused
        body = await request.json()
        self.seen.append({"path": request.path, "headers": dict(request.headers), **body})
        model = body["model"]
        if model != BASE and model not in self.names():
            return web.json_response({"error": {"message": f"no model {model}", "code": "model_not_found"}}, status=404)
        fault = self.faults.get(model)
        if isinstance(fault, int):
            return web.json_response({"error": {"message": f"status {fault}"}}, status=fault)
        if len(self.seen) == 10 and self.stall_s:
            time.sleep(self.stall_s)  # noqa: ASYNC251  (the whole server)
        async with self._gate:
            return await self._stream(request, body, fault)

    async def _stream(self, request: web.Request, body: dict[str, Any], fault: str | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if fault == "silent":
            await asyncio.sleep(60)
        if fault == "garbage":
            await response.write(b"data: {nonsense\n\n")
            return response
        if fault == "error":
            await response.write(b'data: {"error": {"message": "out of memory"}}\n\n')
            return response
        chat = request.path.endswith("/chat/completions")
        if chat:
            await self._event(response, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(self.slow.get(body["model"], self.first_s))
        for number in range(body["max_tokens"]):
            if number:
                await asyncio.sleep(self.gap_s)
            await self._event(response, {"choices": [{"delta": {"content": "a"}} if chat else {"text": "a"}]})
            if fault == "cut" and number:
                return response
        prompt = body.get("prompt", "")
        words = len(prompt) if isinstance(prompt, list) else 2 * len(str(prompt).split())
        usage = {"prompt_tokens": words, "completion_tokens": body["max_tokens"]}
        await self._event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _refused(self, request: web.Request) -> web.Response | None:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "this key is not known"}}, status=401)
        return None

    @property
    def _gate(self) -> asyncio.Semaphore:
        return self._semaphore[0]

    _semaphore: list[asyncio.Semaphore] = field(default_factory=list)

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        """Until `stop`."""
        self._semaphore.append(asyncio.Semaphore(self.slots or 1 << 20))
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_post("/v1/chat/completions", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()


@contextmanager
def running_double(double: Double) -> Iterator[Double]:
    """The double, serving."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    def run() -> None:
        loop.run_until_complete(double.serve(ready, stop))
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        yield double
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
