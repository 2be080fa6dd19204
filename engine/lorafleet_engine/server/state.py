"""The state port: what this engine holds and does, for the operator, the gateway and Prometheus. Built by ports.py.

Read-only. /livez and /readyz are open and empty; everything else needs the port's token.
"""

import asyncio
from dataclasses import asdict

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lorafleet_contracts.admin import (
    LIVE_PATH,
    METRICS_PATH,
    READY_PATH,
    STATE_PATH,
    EngineState,
    MemoryState,
    MergedState,
    ParityState,
    ProblemCode,
    StepsState,
)
from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.messages import LoopState
from lorafleet_engine.server.engine import Engine
from lorafleet_engine.server.metrics import LoaderFigures
from lorafleet_engine.server.problems import answer_problem, make_problem

OPEN_PATHS = frozenset({LIVE_PATH, READY_PATH})
MAX_WAIT_SECONDS = 60.0
COALESCE_SECONDS = 0.1
"""Changes that come this soon after the first are answered together."""


class StatePort:
    """Handlers over one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def state(self, request: Request) -> Response:
        """GET /state?since=N&boot=ID&timeout=SECONDS: at once when there is news after N, else when it comes.

        With `usage=NAME` only what has changed of that gateway instance's usage is told, instead of all.
        """
        try:
            since = int(request.query_params.get("since", "0"))
            timeout = min(max(float(request.query_params.get("timeout", "0")), 0.0), MAX_WAIT_SECONDS)
        except ValueError:
            return answer_problem(make_problem(ProblemCode.INVALID_REQUEST, "since and timeout must be numbers"))
        changes = self._engine.changes
        if request.query_params.get("boot") != self._engine.boot_id or not 0 < since <= changes.seq:
            since = 0
        elif timeout and changes.seq <= since:
            await changes.wait_beyond(since, timeout)
            await asyncio.sleep(COALESCE_SECONDS if changes.seq > since else 0)
        body = make_state(self._engine, since, request.query_params.get("usage")).model_dump_json(
            by_alias=True, exclude_none=True
        )
        return Response(body, media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        names = {version.key: version.display.name for version in self._engine.versions}
        loader = LoaderFigures(self._engine.loader.restarts, self._engine.loader.tier_bytes)
        text = self._engine.metrics.render(self._engine.loop.state, loader, lambda key: names.get(key, key))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def live(self, request: Request) -> Response:
        """GET /livez: this process runs its event loop (the engine ends when the loop process does)."""
        return Response(status_code=200)

    async def ready(self, request: Request) -> Response:
        """GET /readyz: the base answers and new requests are taken."""
        return Response(status_code=200 if self._engine.ready else 503)


def make_state(engine: Engine, since: int, gateway: str | None = None) -> EngineState:
    """The news after change `since`; everything for 0 or when removals since then are forgotten.

    The usage is that of one `gateway` instance, or all of it.
    """
    removed = engine.changes.removed_since(since) if since else None
    loop = engine.loop.state
    return EngineState(
        boot_id=engine.boot_id,
        seq=engine.changes.seq,
        full=removed is None,
        ready=engine.ready,
        draining=engine.draining,
        base=engine.base_state,
        memory=None if loop is None else _memory(loop),
        merged=_merged(engine),
        versions=engine.versions.states_since(0 if removed is None else since),
        removed=removed or [],
        in_flight=engine.in_flight,
        queue=0 if loop is None else loop.waiting,
        usage=list(engine.usage.rows(gateway, since)),
        steps=None if loop is None else StepsState(**asdict(loop.sums)),
        certificate=None if engine.tls is None else engine.tls.state,
    )


def build_state(engine: Engine) -> Starlette:
    """The app of the state port, without its token gate."""
    port = StatePort(engine)
    return Starlette(
        routes=[
            Route(STATE_PATH, port.state),
            Route(METRICS_PATH, port.metrics),
            Route(LIVE_PATH, port.live),
            Route(READY_PATH, port.ready),
        ],
        exception_handlers={HTTPException: answer_http_error, Exception: answer_bug},
    )


async def answer_http_error(request: Request, error: Exception) -> Response:
    """A path or method that this port does not have. Also used by the admin port."""
    return answer_problem(
        make_problem(ProblemCode.NOT_FOUND, f"{request.method} {request.url.path} is not served here")
    )


async def answer_bug(request: Request, error: Exception) -> Response:
    """An error of our own: the log has it. Also used by the admin port."""
    return answer_problem(make_problem(ProblemCode.INTERNAL, "the engine met an error of its own; see its log"))


def _merged(engine: Engine) -> MergedState | None:
    version, ready = engine.versions.merged, engine.loop.ready
    if version is None:
        return None
    found = None if ready is None else ready.parity
    parity = None
    if found is not None:
        parity = ParityState(
            merged=found.merged,
            unmerged=found.unmerged,
            same_argmax=found.same_argmax,
            positions=found.positions,
        )
    return MergedState(uid=version.uid, digest=version.digest, parity=parity)


def _memory(state: LoopState) -> MemoryState:
    return MemoryState(
        total=state.budget.total,
        weights=state.budget.weights,
        activations=state.budget.activations,
        adapters=state.budget.adapters,
        adapters_used=state.adapter_bytes,
        kv=state.budget.kv,
        kv_tokens=state.budget.kv_tokens,
        kv_tokens_used=state.pages_kv * KV_BLOCK_TOKENS,
    )
