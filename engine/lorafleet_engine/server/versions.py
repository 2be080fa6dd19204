"""The versions of this engine and how each comes and goes. Called by the admin port (put, delete) and serving (use).

Fetch and pack happen in the loader, residency in the loop; this file only walks a version through its phases:
fetching -> loading -> resident -> draining -> gone, or -> failed, which the next request to load starts over.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from lorafleet_contracts.admin import Display, Problem, ProblemCode, Tier, VersionPhase, VersionRequest, VersionState
from lorafleet_contracts.names import version_key
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.messages import ForMerge, Packed
from lorafleet_engine.messages import AdapterRejected
from lorafleet_engine.server.changes import ChangeLog
from lorafleet_engine.server.loader_client import LoaderClient
from lorafleet_engine.server.loop_client import LoopClient
from lorafleet_engine.server.metrics import Metrics
from lorafleet_engine.server.problems import make_problem, problem_of
from lorafleet_engine.server.template_runner import TemplateRunner
from lorafleet_engine.server.templates import TemplateError

logger = logging.getLogger(__name__)
PutOutcome = Literal["present", "loaded", "fetching"]


@dataclass(slots=True)
class Version:
    """One version and its phase. `requests` are those that use it; `seq` is its last change.

    A `merged` one is in the base's weights: the loop knows no adapter of that name, and it never goes.
    """

    uid: str
    digest: str
    source_uri: str
    display: Display
    phase: VersionPhase = VersionPhase.FETCHING
    tier: Tier = Tier.DISK
    rank: int = 0
    bytes: int = 0
    requests: int = 0
    seq: int = 0
    problem: Problem | None = None
    problem_reported: bool = False
    unwanted: bool = False
    template: str | None = None
    merged: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> str:
        """`{uid}@{digest}`."""
        return version_key(self.uid, self.digest)

    @property
    def resident(self) -> bool:
        """Whether it can answer now."""
        return self.phase is VersionPhase.RESIDENT

    @property
    def failed(self) -> bool:
        """Whether the last attempt to load it ended in a problem."""
        return self.phase is VersionPhase.FAILED

    def state(self) -> VersionState:
        """What the state port shows."""
        return VersionState(
            uid=self.uid,
            digest=self.digest,
            tier=self.tier,
            phase=self.phase,
            rank=self.rank,
            bytes=self.bytes,
            in_flight=self.requests,
            display=self.display,
            problem=self.problem,
        )


@dataclass(frozen=True, slots=True)
class Workers:
    """The two processes that a version passes through."""

    loader: LoaderClient
    loop: LoopClient


class Versions:
    """All versions of this engine, by key."""

    def __init__(self, workers: Workers, changes: ChangeLog, metrics: Metrics) -> None:
        self._workers = workers
        self._changes = changes
        self._metrics = metrics
        self._versions: dict[str, Version] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.runner: TemplateRunner | None = None
        self.merged: Version | None = None

    def hold_merged(self, version: Version) -> None:
        """One version is in this engine's weights, resident once settle_merged() is called; it takes no other."""
        version.merged, self.merged = True, version
        self._versions[version.key] = version
        self._mark(version, VersionPhase.FETCHING)

    async def note_merge(self, merge: ForMerge) -> None:
        """What the loader found out about the version to merge. Raises JobError."""
        assert self.merged is not None
        self.merged.rank = merge.facts.rank
        self.merged.template = await self._check_template(merge.chat_template)
        self._mark(self.merged, VersionPhase.LOADING)

    def settle_merged(self) -> None:
        """The loop has merged the version, and it is what it was unmerged."""
        assert self.merged is not None
        self.merged.tier = Tier.GPU
        self._mark(self.merged, VersionPhase.RESIDENT)

    def put(self, uid: str, digest: str, request: VersionRequest) -> Version:
        """Have this version on the device, starting what is needed. A failed one starts over once it was reported.

        Raises JobError on an engine with another one merged.
        """
        if self.merged is not None and self.merged.key != version_key(uid, digest):
            raise JobError(ProblemCode.MERGED, f"this engine has {self.merged.key} merged and serves nothing else")
        version = self._versions.get(version_key(uid, digest))
        if version is not None and not (version.failed and version.problem_reported):
            version.display = request.display
            if version.phase in (VersionPhase.FETCHING, VersionPhase.LOADING):
                version.unwanted = False
            return version
        version = Version(uid, digest, request.source.uri, request.display)
        self._versions[version.key] = version
        self._mark(version, VersionPhase.FETCHING)
        self._spawn(self._bring(version))
        return version

    def delete(self, uid: str, digest: str) -> Version | None:
        """Start to free a version; None when it is not here (any more). Raises JobError for a merged one."""
        version = self._versions.get(version_key(uid, digest))
        if version is None:
            return None
        if version.merged:
            raise JobError(ProblemCode.MERGED, f"{version.key} is merged into this engine's weights: end the engine")
        if version.failed:
            self._forget(version)
            return None
        if version.resident:
            self._mark(version, VersionPhase.DRAINING)
            self._spawn(self._free(version))
        version.unwanted = True
        return version

    def find_resident(self, key: str) -> Version | None:
        """The version that may answer a request under this key now."""
        version = self._versions.get(key)
        return version if version is not None and version.resident else None

    @contextmanager
    def using(self, version: Version | None) -> Iterator[None]:
        """Count a request that pins a version (None: the base)."""
        if version is None:
            yield
            return
        self._count(version, 1)
        try:
            yield
        finally:
            self._count(version, -1)

    def states_since(self, seq: int) -> list[VersionState]:
        """Versions changed after `seq`."""
        return [version.state() for version in self._versions.values() if version.seq > seq]

    def __iter__(self) -> Iterator[Version]:
        """All versions."""
        return iter(tuple(self._versions.values()))

    async def _bring(self, version: Version) -> None:
        try:
            packed = await self._workers.loader.pack(version.source_uri, version.digest)
            try:
                await self._load(version, packed)
            finally:
                self._workers.loader.release(version.digest)
        except JobError as error:
            self._fail(version, problem_of(error))
        if version.unwanted and version.resident:
            self._mark(version, VersionPhase.DRAINING)
            await self._free(version)
        elif version.unwanted:
            self._forget(version)

    async def _load(self, version: Version, packed: Packed) -> None:
        version.rank, version.bytes, version.tier = packed.facts.rank, packed.facts.bytes, Tier.HOST
        version.template = await self._check_template(packed.chat_template)
        self._mark(version, VersionPhase.LOADING)
        with self._metrics.time_load("load", packed.start_tier):
            result = await self._workers.loop.load(version.key, packed.blob)
        for phase, seconds in packed.seconds:
            self._metrics.observe_load(phase, packed.start_tier, seconds)
        if isinstance(result, AdapterRejected):
            self._fail(version, _rejection(result))
            return
        version.tier = Tier.GPU
        self._mark(version, VersionPhase.RESIDENT)
        logger.info("%s is resident: rank %d, %d bytes", version.key, version.rank, version.bytes)

    async def _check_template(self, source: str | None) -> str | None:
        if source is None or self.runner is None:
            return None
        try:
            await self.runner.check(source)
            return source
        except TemplateError as error:
            raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, str(error), (str(error),)) from error

    async def _free(self, version: Version) -> None:
        gone = await self._workers.loop.unload(version.key)
        logger.info("%s is gone, %d bytes are back", version.key, gone.bytes_freed)
        self._forget(version)

    def _fail(self, version: Version, problem: Problem) -> None:
        version.problem = problem
        logger.warning("%s cannot be loaded: %s (%s)", version.key, problem.detail, problem.code.value)
        self._mark(version, VersionPhase.FAILED)

    def _mark(self, version: Version, phase: VersionPhase) -> None:
        version.phase = phase
        version.seq = self._changes.bump()
        if phase in (VersionPhase.RESIDENT, VersionPhase.FAILED):
            version.done.set()

    def _forget(self, version: Version) -> None:
        if self._versions.get(version.key) is version:
            del self._versions[version.key]
            self._changes.remove(version.key)
        version.done.set()

    def _count(self, version: Version, change: int) -> None:
        version.requests += change
        version.seq = self._changes.bump()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _rejection(result: AdapterRejected) -> Problem:
    codes = {
        "does_not_fit": ProblemCode.DOES_NOT_FIT,
        "rank_above_limit": ProblemCode.UNSUPPORTED_ADAPTER,
        "wrong_model": ProblemCode.BASE_MISMATCH,
        "draining": ProblemCode.DRAINING,
    }
    problem = make_problem(codes.get(result.code, ProblemCode.INTERNAL), result.message, (result.message,))
    if result.code != "does_not_fit":
        return problem
    return problem.model_copy(update={"needed": result.needed, "free": result.free})
