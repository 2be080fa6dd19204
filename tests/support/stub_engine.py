"""An engine as the operator sees it: the state and admin ports over real HTTP, memory in a dictionary.

Used by tests of the operator only. It obeys the contract (tokens, 202 while it works, problem documents, long polls)
and nothing else; what inspections find and which calls fail is set by the test.
"""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from lorafleet_contracts.admin import (
    AdapterReport,
    BaseState,
    EngineState,
    InspectRequest,
    MemoryState,
    PortName,
    Problem,
    ProblemCode,
    Tier,
    VersionPhase,
    VersionRequest,
    VersionState,
)
from lorafleet_contracts.names import EnginePort, version_key
from lorafleet_contracts.tokens import token_matches

HOLD_SECONDS = 5.0
SIZE = 1_000_000


@dataclass
class StubEngine:
    """One engine at one address. Change `findings` (by URI) and `refusals` (by URI) to steer it."""

    ip: str
    tokens: dict[str, list[str]]
    budget: int = 100 * SIZE
    findings: dict[str, AdapterReport] = field(default_factory=dict)
    refusals: dict[str, Problem] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    boot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    versions: dict[str, VersionState] = field(default_factory=dict)
    seq: int = 1
    ready: bool = True
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _working: set[str] = field(default_factory=set)
    _fetched: dict[str, str] = field(default_factory=dict)

    def touch(self) -> None:
        """Something changed: answer the long polls."""
        self.seq += 1
        self._moved.set()
        self._moved = asyncio.Event()

    def restart(self) -> None:
        """Lose all memory, as a restarted container does."""
        self.boot_id, self.versions, self.seq = str(uuid.uuid4()), {}, 0
        self.touch()

    def resident(self) -> set[str]:
        """Keys of the versions in memory."""
        return {key for key, each in self.versions.items() if each.phase == VersionPhase.RESIDENT}

    def report(self, uri: str) -> AdapterReport:
        """What this source holds."""
        digest = f"sha256:{hashlib.sha256(uri.encode()).hexdigest()}"
        default = AdapterReport(digest=digest, bytes=SIZE, rank=8, target_modules=["q_proj"], base="smollm2")
        return self.findings.get(uri, default)

    def state(self) -> EngineState:
        """The full state."""
        used = sum(each.bytes for each in self.versions.values())
        memory = MemoryState(
            total=self.budget * 4, weights=10, activations=5, adapters=self.budget, adapters_used=used, kv=0,
            kv_tokens=1024, kv_tokens_used=0,
        )  # fmt: skip
        return EngineState(
            boot_id=self.boot_id, seq=self.seq, full=True, ready=self.ready, draining=False,
            base=BaseState(name="smollm2"), memory=memory, versions=list(self.versions.values()),
        )  # fmt: skip

    async def get_state(self, request: web.Request) -> web.Response:
        """GET /state: at once when the client's view is old, else as soon as something moves."""
        self._admit(request, PortName.STATE)
        current = request.query.get("boot") == self.boot_id and int(request.query.get("since", "-1")) >= self.seq
        if current:
            moved = self._moved
            try:
                async with asyncio.timeout(HOLD_SECONDS):
                    await moved.wait()
            except TimeoutError:
                pass
        return _answer(200, self.state().model_dump_json(by_alias=True))

    async def post_inspect(self, request: web.Request) -> web.Response:
        """First 202, then the report or the problem."""
        self._admit(request, PortName.ADMIN)
        asked = InspectRequest.model_validate_json(await request.read())
        uid = request.match_info["uid"]
        self.calls.append(f"inspect {uid}")
        if problem := self.refusals.get(asked.source.uri):
            return _problem(problem)
        key = f"{uid}/{asked.generation}"
        if key not in self._working:
            self._working.add(key)
            return _answer(202, "{}")
        found = self.report(asked.source.uri)
        if asked.digest and asked.digest != found.digest:
            detail = f"found {found.digest}"
            return _problem(Problem(title="digest", status=409, code=ProblemCode.DIGEST_MISMATCH, detail=detail))
        return _answer(200, found.model_dump_json(by_alias=True))

    async def put_version(self, request: web.Request) -> web.Response:
        """200 present, 201 loaded, 409 when the files have another digest, 413 when there is no room."""
        self._admit(request, PortName.ADMIN)
        asked = VersionRequest.model_validate_json(await request.read())
        uid, digest = request.match_info["uid"], request.match_info["digest"]
        key = version_key(uid, digest)
        self.calls.append(f"load {key}")
        if key in self.versions:
            return _answer(200, "{}")
        found = self.report(asked.source.uri)
        if found.digest != digest:
            return _problem(Problem(title="digest", status=409, code=ProblemCode.DIGEST_MISMATCH, detail="changed"))
        free = self.budget - sum(each.bytes for each in self.versions.values())
        if found.bytes > free:
            code = ProblemCode.DOES_NOT_FIT
            return _problem(Problem(title="full", status=413, code=code, needed=found.bytes, free=free))
        self.versions[key] = VersionState(
            uid=uid, digest=digest, tier=Tier.GPU, phase=VersionPhase.RESIDENT, rank=found.rank, bytes=found.bytes,
            display=asked.display,
        )  # fmt: skip
        self.touch()
        return _answer(201, "{}")

    async def delete_version(self, request: web.Request) -> web.Response:
        """202, and gone."""
        self._admit(request, PortName.ADMIN)
        key = version_key(request.match_info["uid"], request.match_info["digest"])
        self.calls.append(f"unload {key}")
        if self.versions.pop(key, None) is None:
            return _problem(Problem(title="no such version", status=404, code=ProblemCode.NOT_FOUND))
        self.touch()
        return _answer(202, "{}")

    def _admit(self, request: web.Request, port: PortName) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not token_matches(token, self.tokens.get(port.value, [])):
            raise web.HTTPUnauthorized


@asynccontextmanager
async def run_stub_engine(ip: str, tokens: dict[str, list[str]]) -> AsyncIterator[StubEngine]:
    """Serve an engine's state and admin ports on one loopback address (127.x.y.z)."""
    engine = StubEngine(ip, tokens)
    state, admin = web.Application(), web.Application()
    state.add_routes([web.get("/state", engine.get_state)])
    admin.add_routes(
        [
            web.post("/admin/v1/adapters/{uid}/inspect", engine.post_inspect),
            web.put("/admin/v1/adapters/{uid}/versions/{digest}", engine.put_version),
            web.delete("/admin/v1/adapters/{uid}/versions/{digest}", engine.delete_version),
        ]
    )
    runners = []
    try:
        for app, port in ((state, EnginePort.STATE), (admin, EnginePort.ADMIN)):
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            runners.append(runner)
            await web.TCPSite(runner, ip, int(port)).start()
        yield engine
    finally:
        for runner in runners:
            await runner.cleanup()


def _answer(status: int, body: str) -> web.Response:
    return web.Response(status=status, text=body, content_type="application/json")


def _problem(problem: Problem) -> web.Response:
    body = problem.model_dump_json(by_alias=True, exclude_none=True)
    return web.Response(status=problem.status, text=body, content_type="application/problem+json")
