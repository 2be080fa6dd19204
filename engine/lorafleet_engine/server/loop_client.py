"""The api's side of the loop process: sends requests, hands back what comes for each. Knows no HTTP.

The loop is never restarted: when it ends, `failure` is set and main.py ends the engine, so that the container restarts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from lorafleet_engine.errors import ChildDiedError
from lorafleet_engine.messages import (
    AdapterChecked,
    AdapterLoaded,
    AdapterRejected,
    AdapterUnloaded,
    BlobRef,
    Cancel,
    Drain,
    Drained,
    FromLoop,
    Generate,
    LoadAdapter,
    LoopConfig,
    LoopFailed,
    LoopReady,
    LoopState,
    Rejected,
    Shutdown,
    StepTokens,
    Tokens,
    UnloadAdapter,
    VersionKey,
)
from lorafleet_engine.server.children import Child

logger = logging.getLogger(__name__)
News = Tokens | Rejected | int
"""Of one request. A plain number is one more token, with nothing else to say about it."""
Result = TypeVar("Result")


class LoopClient:
    """Owns the loop process. `on_change` is called after every state message, `on_ready` once it can serve,
    `on_checked` when a version was checked on a quantised base."""

    def __init__(
        self,
        on_change: Callable[[], None],
        on_ready: Callable[[], None],
        on_checked: Callable[[AdapterChecked], None],
    ) -> None:
        self._on_change = on_change
        self._on_ready = on_ready
        self._on_checked = on_checked
        self._child: Child | None = None
        self._requests: dict[str, Callable[[News], None]] = {}
        self._loads: dict[VersionKey, asyncio.Future[AdapterLoaded | AdapterRejected]] = {}
        self._unloads: dict[VersionKey, asyncio.Future[AdapterUnloaded]] = {}
        self._failed: LoopFailed | None = None
        self._configured = False
        self._draining = False
        self._dead = False
        self._sequence = 0
        self.ready: LoopReady | None = None
        self.state: LoopState | None = None

    async def run(self, make_config: Callable[[], Awaitable[LoopConfig]]) -> None:
        """Start the loop and dispatch its messages until it ends. Always raises ChildDiedError.

        The process starts, and imports what it needs, while `make_config` is still waiting for the base model.
        """
        child = self._child = await Child.start("loop")
        logger.info("loop started, pid %d", child.pid)
        try:
            child.send(await make_config())
            self._configured = True
            if self._draining:
                child.send(Drain())
            while True:
                message: FromLoop = await child.receive()
                self._dispatch(message)
        except EOFError:
            self._refuse_all()
            status = await child.end()
            told = self._failed or LoopFailed(f"the loop process ended with status {status}")
            raise ChildDiedError(told.message, told.status) from None
        finally:
            await child.end()

    def generate(self, request: Generate, receive: Callable[[News], None]) -> str:
        """Send a request under an id of our own, returned; its news go to `receive` until the last or cancel()."""
        self._sequence += 1
        request_id = f"r{self._sequence}"
        if self._dead:
            receive(_last_word(request_id))
            return request_id
        self._requests[request_id] = receive
        self._send(replace(request, request_id=request_id))
        return request_id

    def cancel(self, request_id: str) -> None:
        """End a request early; what the loop still says about it is dropped. Does nothing for an ended one."""
        if self._requests.pop(request_id, None) is not None:
            self._send(Cancel(request_id))

    async def load(self, key: VersionKey, blob: BlobRef) -> AdapterLoaded | AdapterRejected:
        """Make a packed version resident."""
        future: asyncio.Future[AdapterLoaded | AdapterRejected] = asyncio.get_running_loop().create_future()
        self._loads[key] = future
        self._send(LoadAdapter(key, blob))
        return await future

    async def unload(self, key: VersionKey) -> AdapterUnloaded:
        """Free a version after its last request."""
        future: asyncio.Future[AdapterUnloaded] = asyncio.get_running_loop().create_future()
        self._unloads[key] = future
        self._send(UnloadAdapter(key))
        return await future

    def drain(self) -> None:
        """Let the loop refuse new requests; before its config, which must be its first message, this waits."""
        self._draining = True
        if self._configured:
            self._send(Drain())

    def shutdown(self) -> None:
        """Let the loop end; run() then raises."""
        self._send(Shutdown())

    def _refuse_all(self) -> None:
        """Tell every request, now and later, that nothing more comes: another replica can still answer most of them."""
        self._dead = True
        requests, self._requests = self._requests, {}
        for request_id, receive in requests.items():
            receive(_last_word(request_id))

    def _send(self, message: object) -> None:
        if self._child is not None:
            self._child.send(message)

    def _deliver_step(self, news: StepTokens) -> None:
        requests = self._requests
        for request_id, token in zip(news.request_ids, news.token_ids, strict=True):
            receive = requests.get(request_id)
            if receive is not None:
                receive(token)

    def _deliver(self, news: Tokens | Rejected) -> None:
        receive = self._requests.get(news.request_id)
        if isinstance(news, Rejected) or news.finish_reason is not None:
            self._requests.pop(news.request_id, None)
        if receive is not None:
            receive(news)

    def _dispatch(self, message: FromLoop) -> None:
        match message:
            case StepTokens():
                self._deliver_step(message)
            case Tokens() | Rejected():
                self._deliver(message)
            case AdapterLoaded() | AdapterRejected():
                _resolve(self._loads.pop(message.key, None), message)
            case AdapterUnloaded():
                _resolve(self._unloads.pop(message.key, None), message)
            case AdapterChecked():
                self._on_checked(message)
            case LoopState():
                self.state = message
                self._on_change()
            case LoopReady():
                logger.info("the loop is ready: %s", message.budget)
                self.ready = message
                self._on_ready()
                self._on_change()
            case LoopFailed():
                self._failed = message
                logger.error("the loop failed: %s", message.message)
            case Drained():
                logger.info("the loop is drained")


def _last_word(request_id: str) -> Rejected:
    return Rejected(request_id, "engine_died", "this engine has failed and starts again")


def _resolve(future: "asyncio.Future[Result] | None", result: Result) -> None:
    if future is not None and not future.done():
        future.set_result(result)
