"""An engine as the operator sees it: the state and admin ports over real HTTP, memory in a dictionary.

Used by tests and the benchmark of the operator. It obeys the contract (tokens, 202 while it works, problem documents,
long polls, deltas) and nothing else; what inspections find, how long work takes and what fails is set by the test.
"""

import asyncio
import hashlib
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Middleware

from lorafleet_contracts.admin import (
    AdapterReport,
    BaseState,
    CertificateState,
    EngineState,
    InspectRequest,
    MemoryState,
    MergedState,
    PortName,
    Problem,
    ProblemCode,
    StepsState,
    Tier,
    UsageState,
    VersionPhase,
    VersionRequest,
    VersionState,
)
from lorafleet_contracts.names import EnginePort, version_key
from lorafleet_contracts.tokens import token_matches

SIZE = 1_000_000
JOBS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Pace:
    """How long work takes: `fetch` (source to disk, with hashing) and `load` (disk to memory) in seconds a byte, each
    with `latency` seconds more. A call waits `patience` seconds for its result before it answers 202."""

    latency: float = 0.0
    fetch: float = 0.0
    load: float = 0.0
    patience: float = 0.0


@dataclass
class StubEngine:
    """One engine at one address. Change `findings` (by URI) and `refusals` (by URI) to steer it.

    `fault`: "hang" never answers, "garbage" answers nonsense, "flood" without an end, "cut" ends connections; empty:
    none. `polls` counts questions for the state, `busiest` is the most inspections and loads under way at once.
    """

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
    in_flight: int = 0
    queue: int = 0
    usage: list[UsageState] = field(default_factory=list)
    pace: Pace = Pace()
    fault: str = ""
    polls: int = 0
    busiest: int = 0
    merged: MergedState | None = None
    steps: StepsState | None = None
    certificate: CertificateState | None = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: dict[str, int] = field(default_factory=dict)
    _removed: list[tuple[int, str]] = field(default_factory=list)
    _inspections: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _loads: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _on_disk: set[str] = field(default_factory=set)
    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(JOBS_AT_ONCE))

    def touch(self) -> None:
        """Something changed: answer the long polls."""
        self.seq += 1
        self._moved.set()
        self._moved = asyncio.Event()

    def restart(self) -> None:
        """Lose all memory, as a restarted container does; what is on its disk stays."""
        for task in (*self._loads.values(), *self._inspections.values()):
            task.cancel()
        self._loads, self._inspections, self._changed, self._removed = {}, {}, {}, []
        self.boot_id, self.versions, self.seq = str(uuid.uuid4()), {}, 0
        self.touch()

    def lose(self, key: str) -> None:
        """Be without a version that nobody asked to unload."""
        del self.versions[key]
        self.touch()
        self._removed.append((self.seq, key))

    def resident(self) -> set[str]:
        """Keys of the versions in memory."""
        return {key for key, each in self.versions.items() if each.phase == VersionPhase.RESIDENT}

    def used(self) -> int:
        """Bytes on the GPU."""
        return sum(each.bytes for each in self.versions.values() if each.tier is Tier.GPU)

    def answers(self, key: str) -> bool:
        """Whether a request for a version is served."""
        merged = self.merged and version_key(self.merged.uid, self.merged.digest) == key
        return self.ready and (bool(merged) or key in self.resident())

    def serve(self, key: str, tenant: str, tokens: int = 0) -> None:
        """Count a request of a tenant for a version, and the tokens of its answer."""
        rows = {(each.tenant, each.adapter): each for each in self.usage}
        row = rows.get((tenant, key)) or UsageState(tenant=tenant, adapter=key, gateway="g")
        counts = {"requests": row.requests + 1, "completion_tokens": row.completion_tokens + tokens}
        rows[tenant, key] = row.model_copy(update=counts)
        self.usage = list(rows.values())
        self.touch()

    def report(self, uri: str) -> AdapterReport:
        """What this source holds."""
        digest = f"sha256:{hashlib.sha256(uri.encode()).hexdigest()}"
        default = AdapterReport(digest=digest, bytes=SIZE, rank=8, target_modules=["q_proj"], base="smollm2")
        return self.findings.get(uri, default)

    def state(self, since: int = 0) -> EngineState:
        """What changed after `since`, or everything for 0."""
        memory = MemoryState(
            total=self.budget * 4, weights=10, activations=5, adapters=self.budget, adapters_used=self.used(), kv=0,
            kv_tokens=1024, kv_tokens_used=0,
        )  # fmt: skip
        return EngineState(
            boot_id=self.boot_id, seq=self.seq, full=since == 0, ready=self.ready, draining=False,
            base=BaseState(name="smollm2"), memory=memory, in_flight=self.in_flight,
            queue=self.queue, usage=self.usage, merged=self.merged, steps=self.steps,
            certificate=self.certificate,
            versions=[each for key, each in self.versions.items() if self._changed.get(key, 1) > since],
            removed=[key for number, key in self._removed if number > since > 0],
        )  # fmt: skip

    async def get_state(self, request: web.Request) -> web.Response:
        """GET /state: at once when the client's view is old, else as soon as something moves within its `timeout`."""
        self._admit(request, PortName.STATE)
        self.polls += 1
        boot, since = request.query.get("boot"), int(request.query.get("since", "0"))
        if boot != self.boot_id or since > self.seq:
            since = 0
        elif since == self.seq:
            moved = self._moved
            with suppress(TimeoutError):
                async with asyncio.timeout(float(request.query.get("timeout", "0"))):
                    await moved.wait()
        return _answer(200, self.state(since if boot == self.boot_id else 0).model_dump_json(by_alias=True))

    async def post_inspect(self, request: web.Request) -> web.Response:
        """202 while it works, then the report or the problem."""
        self._admit(request, PortName.ADMIN)
        asked = InspectRequest.model_validate_json(await request.read())
        uid = request.match_info["uid"]
        self.calls.append(f"inspect {uid}")
        if problem := self.refusals.get(asked.source.uri):
            return _problem(problem)
        key, found = f"{uid}/{asked.generation}", self.report(asked.source.uri)
        if key not in self._inspections:
            self._inspections[key] = asyncio.create_task(self._fetch(asked.source.uri, found.bytes))
            self._note_jobs()
        if self.pace.patience:
            await asyncio.wait([self._inspections[key]], timeout=self.pace.patience)
        if not self._inspections[key].done():
            return _answer(202, "{}")
        if asked.digest and asked.digest != found.digest:
            detail = f"found {found.digest}"
            return _problem(Problem(title="digest", status=409, code=ProblemCode.DIGEST_MISMATCH, detail=detail))
        return _answer(200, found.model_dump_json(by_alias=True))

    async def put_version(self, request: web.Request) -> web.Response:
        """200 present, 201 loaded, 202 loading, 409 when the files have another digest, 413 when there is no room."""
        self._admit(request, PortName.ADMIN)
        asked = VersionRequest.model_validate_json(await request.read())
        uid, digest = request.match_info["uid"], request.match_info["digest"]
        key = version_key(uid, digest)
        self.calls.append(f"load {key}")
        if key in self.resident():
            asked_before = self.versions[key]
            if (asked_before.wanted, asked_before.pinned) != (asked.tier, asked.pinned):
                self._set(asked_before.model_copy(update={"wanted": asked.tier, "pinned": asked.pinned}))
            return _answer(200, "{}")
        if key not in self.versions:
            if problem := self.refusals.get(f"load {asked.source.uri}"):
                return _problem(problem)
            found = self.report(asked.source.uri)
            if found.digest != digest:
                return _problem(Problem(title="digest", status=409, code=ProblemCode.DIGEST_MISMATCH, detail="changed"))
            free = self.budget - self.used()
            if found.bytes > free and asked.tier is Tier.GPU:
                code = ProblemCode.DOES_NOT_FIT
                return _problem(Problem(title="full", status=413, code=code, needed=found.bytes, free=free))
            version = VersionState(
                uid=uid, digest=digest, tier=asked.tier, wanted=asked.tier, pinned=asked.pinned, rank=found.rank,
                phase=VersionPhase.LOADING, bytes=found.bytes, display=asked.display,
            )  # fmt: skip
            self._set(version)
            if self.pace == Pace():
                self._set(version.model_copy(update={"phase": VersionPhase.RESIDENT}))
            else:
                self._loads[key] = asyncio.create_task(self._load(version, asked.source.uri))
                self._note_jobs()
        if key in self._loads:
            await asyncio.wait([self._loads[key]], timeout=self.pace.patience)
        return _answer(201 if key in self.resident() else 202, "{}")

    async def delete_version(self, request: web.Request) -> web.Response:
        """202, and gone."""
        self._admit(request, PortName.ADMIN)
        key = version_key(request.match_info["uid"], request.match_info["digest"])
        self.calls.append(f"unload {key}")
        if key not in self.versions:
            return _problem(Problem(title="no such version", status=404, code=ProblemCode.NOT_FOUND))
        self.lose(key)
        return _answer(202, "{}")

    def _note_jobs(self) -> None:
        jobs = (*self._inspections.values(), *self._loads.values())
        self.busiest = max(self.busiest, sum(not job.done() for job in jobs))

    async def _fetch(self, uri: str, size: int) -> None:
        async with self._free:
            if uri not in self._on_disk:
                await asyncio.sleep(self.pace.latency + size * self.pace.fetch)
            self._on_disk.add(uri)

    async def _load(self, version: VersionState, uri: str) -> None:
        await self._fetch(uri, version.bytes)
        async with self._free:
            await asyncio.sleep(self.pace.latency + version.bytes * self.pace.load)
        if version.key in self.versions:
            self._set(version.model_copy(update={"phase": VersionPhase.RESIDENT}))

    def _set(self, version: VersionState) -> None:
        self.touch()
        self.versions[version.key] = version
        self._changed[version.key] = self.seq

    def _admit(self, request: web.Request, port: PortName) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not token_matches(token, self.tokens.get(port.value, [])):
            raise web.HTTPUnauthorized


@asynccontextmanager
async def run_stub_engine(
    ip: str, tokens: dict[str, list[str]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[StubEngine]:
    """Serve an engine's state and admin ports on one loopback address (127.x.y.z), by plain HTTP without `tls`."""
    engine = StubEngine(ip, tokens)
    state, admin = (web.Application(middlewares=[_misbehave(engine)]) for _ in range(2))
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
            await web.TCPSite(runner, ip, int(port), ssl_context=tls).start()
        yield engine
    finally:
        for runner in runners:
            await runner.cleanup()


def _misbehave(engine: StubEngine) -> Middleware:
    @web.middleware
    async def misbehave(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if engine.fault == "hang":
            await asyncio.Event().wait()
        if engine.fault == "cut" and request.transport is not None:
            request.transport.abort()
        if engine.fault == "garbage":
            return web.Response(body=b"\xff\xfe<html>it works</html>")
        if engine.fault == "flood":
            endless = web.StreamResponse()
            await endless.prepare(request)
            while engine.fault == "flood":
                await endless.write(b" " * (1 << 20))
            return endless
        return await handler(request)

    return misbehave


def _answer(status: int, body: str) -> web.Response:
    return web.Response(status=status, text=body, content_type="application/json")


def _problem(problem: Problem) -> web.Response:
    body = problem.model_dump_json(by_alias=True, exclude_none=True)
    return web.Response(status=problem.status, text=body, content_type="application/problem+json")
