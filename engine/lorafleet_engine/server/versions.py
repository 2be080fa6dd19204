"""The versions of this engine and how each comes and goes. Called by the admin port (put, delete) and serving (use).

Fetch and pack happen in the loader, residency in the loop; this file only walks a version through its phases:
fetching -> loading -> resident -> draining -> gone, or -> failed, which the next request to load starts over. One that
is wanted on a slower tier than the device is resident there, and raised to the device by the first request for it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from lorafleet_contracts.admin import (
    Problem,
    ProblemCode,
    Tier,
    VersionPhase,
    VersionRequest,
    VersionState,
)
from lorafleet_contracts.names import version_key
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.eviction import Held, choose_victims
from lorafleet_engine.loader.messages import ForMerge, Packed
from lorafleet_engine.loader.origin import origin_of
from lorafleet_engine.messages import AdapterChecked, AdapterLoaded, AdapterRejected
from lorafleet_engine.server.changes import ChangeLog
from lorafleet_engine.server.loader_client import LoaderClient
from lorafleet_engine.server.loop_client import LoopClient
from lorafleet_engine.server.metrics import Metrics
from lorafleet_engine.server.problems import make_problem, problem_of
from lorafleet_engine.server.template_runner import TemplateRunner
from lorafleet_engine.server.templates import TemplateError
from lorafleet_engine.server.version import Version, judge_quality

logger = logging.getLogger(__name__)
PutOutcome = Literal["present", "loaded", "fetching"]
COMING = frozenset({VersionPhase.FETCHING, VersionPhase.LOADING, VersionPhase.RESIDENT})


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
            version.display, version.origin = request.display, origin_of(request.source)
            self._want(version, request)
            if version.phase in (VersionPhase.FETCHING, VersionPhase.LOADING):
                version.unwanted = False
            return version
        version = Version(uid, digest, origin_of(request.source), request.display, request.tier, request.pinned)
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
        if version.resident and version.rising is None:
            self._mark(version, VersionPhase.DRAINING)
            self._spawn(self._free(version))
        version.unwanted = True
        return version

    def find(self, key: str) -> Version | None:
        """The version under this key that answers, or will soon: on the device, on another tier, or on its way."""
        version = self._versions.get(key)
        return version if version is not None and version.phase in COMING and not version.unwanted else None

    def prefetch(self, version: Version) -> None:
        """Start to bring a version onto the device from a slower tier. Never waits."""
        if version.resident and not version.on_device:
            self._rise(version)

    async def ready(self, version: Version, patience_s: float) -> None:
        """Wait until a version is on the device, or that has failed, or takes too long.

        The caller counts as its user (`using`), so that it stays there.
        """
        if not version.on_device:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await version.done.wait()
                    if version.resident and not version.on_device:
                        await asyncio.shield(self._rise(version))

    @contextmanager
    def using(self, version: Version | None) -> Iterator[None]:
        """Count a request that pins a version (None: the base)."""
        if version is None:
            yield
            return
        version.usage = version.usage.used(time.monotonic())
        self._count(version, 1)
        try:
            yield
        finally:
            self._count(version, -1)

    def note_quality(self, checked: AdapterChecked) -> None:
        """What the loop found out about a version on a quantised base."""
        version = self._versions.get(checked.key)
        if version is None:
            return
        version.quality = judge_quality(checked.quality)
        version.seq = self._changes.bump()
        logger.info("%s on the quantised base: %s", version.key, version.quality)

    def states_since(self, seq: int) -> list[VersionState]:
        """Versions changed after `seq`."""
        return [version.state() for version in self._versions.values() if version.seq > seq]

    def __iter__(self) -> Iterator[Version]:
        """All versions."""
        return iter(tuple(self._versions.values()))

    def _want(self, version: Version, request: VersionRequest) -> None:
        """Note where a version should be; one that is to be on the device now goes there."""
        if (version.wanted, version.pinned) != (request.tier, request.pinned):
            version.wanted, version.pinned = request.tier, request.pinned
            version.seq = self._changes.bump()
        if request.tier is Tier.GPU:
            self.prefetch(version)

    def _rise(self, version: Version) -> "asyncio.Task[None]":
        """What brings a version from a slower tier onto the device: one task for all who wait for it."""
        if version.rising is None:
            version.rising = self._spawn(self._raise(version))
        return version.rising

    async def _bring(self, version: Version) -> None:
        try:
            async with self._packed(version) as packed:
                version.template = await self._check_template(packed.chat_template)
                if version.wanted is Tier.GPU:
                    version.tier = Tier.HOST
                    self._mark(version, VersionPhase.LOADING)
                    await self._load(version, packed)
                else:
                    version.tier = version.wanted
                    self._mark(version, VersionPhase.RESIDENT)
        except JobError as error:
            self._fail(version, problem_of(error))
        await self._leave(version)

    async def _raise(self, version: Version) -> None:
        try:
            async with self._packed(version) as packed:
                await self._load(version, packed)
        except JobError as error:
            self._fail(version, problem_of(error))
        finally:
            version.rising = None
        await self._leave(version)

    async def _leave(self, version: Version) -> None:
        """Let go of a version that was deleted while it came."""
        if version.unwanted and version.resident:
            self._mark(version, VersionPhase.DRAINING)
            await self._free(version)
        elif version.unwanted:
            self._forget(version)

    @asynccontextmanager
    async def _packed(self, version: Version) -> AsyncIterator[Packed]:
        """A version's packed bytes on the host tier, kept there meanwhile; one that is to be on disk leaves no copy
        there until it is used. Raises JobError."""
        packed = await self._workers.loader.pack(version.origin, version.digest)
        try:
            version.rank, version.bytes = packed.facts.rank, packed.facts.device_bytes
            for phase, seconds in packed.seconds:
                self._metrics.observe_load(phase, packed.start_tier, seconds)
            yield packed
        finally:
            self._workers.loader.release(version.digest, drop=version.tier is Tier.DISK)

    async def _load(self, version: Version, packed: Packed) -> None:
        with self._metrics.time_load("load", packed.start_tier):
            result = await self._workers.loop.load(version.key, packed.blob)
            while _full(result) and await self._lower_one(for_request=version.requests > 0):
                result = await self._workers.loop.load(version.key, packed.blob)
        if _full(result) and version.resident:
            logger.warning("%s stays on its tier: the device is full of what is in use or wanted there", version.key)
        elif isinstance(result, AdapterRejected):
            self._fail(version, _rejection(result))
        else:
            version.tier = Tier.GPU
            self._mark(version, VersionPhase.RESIDENT)
            logger.info("%s is on the device: rank %d, %d bytes", version.key, version.rank, version.bytes)

    async def _lower_one(self, for_request: bool) -> bool:
        """Take from the device what is worth least of the versions that need not be there; False when there is none.

        A request is not refused while anything idle is there, were it even asked onto the device.
        """
        idle = [
            version
            for version in self._versions.values()
            if version.on_device and not (version.requests or version.merged or version.pinned)
        ]
        floating = [version for version in idle if version.wanted is not Tier.GPU]
        candidates = floating or (idle if for_request else [])
        held = [Held(version.key, version.bytes, version.usage) for version in candidates]
        victims = choose_victims(held, 1, time.monotonic())
        for key in victims:
            version = self._versions[key]
            version.tier = Tier.HOST if version.wanted is Tier.GPU else version.wanted
            self._mark(version, VersionPhase.RESIDENT)
            await self._workers.loop.unload(key)
            self._metrics.count_eviction("gpu")
        return bool(victims)

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

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _full(result: AdapterLoaded | AdapterRejected) -> bool:
    return isinstance(result, AdapterRejected) and result.code == "does_not_fit"


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
