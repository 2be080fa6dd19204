"""The api's side of the loader process: runs jobs there, restarts it when it dies or hangs. Knows no HTTP.

A job whose loader died runs once more in the next one; the second death is reported, so that one bad file cannot keep
the loader from all other work. A stalled loader only matters while a job waits for it.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from lorafleet_contracts.admin import ProblemCode, Tier
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.messages import (
    BaseFetched,
    FetchBase,
    ForMerge,
    FromLoader,
    Heartbeat,
    InspectAdapter,
    Inspected,
    Job,
    JobFailed,
    JobResult,
    LoaderConfig,
    PackAdapter,
    Packed,
    PackForMerge,
    Release,
    WarmUp,
)
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.server.children import Child

logger = logging.getLogger(__name__)
MAX_STARTS_PER_JOB = 2
RESTART_SECONDS = 0.5
START_SECONDS = 300.0
"""Until a loader's first word: on a starved node its imports alone take longer than it may be silent later."""


@dataclass(slots=True)
class _Pending:
    job: Job
    future: "asyncio.Future[JobResult]"
    starts: int = 0


class LoaderClient:
    """Owns the loader process and the jobs that wait for it. `stall_seconds` without a heartbeat count as hanging;
    `tier_bytes` are what adapters took on the loader's tiers at the last one."""

    def __init__(self, config: LoaderConfig, max_jobs: int = 256, stall_seconds: float = 30.0) -> None:
        self._config = config
        self._max_jobs = max_jobs
        self._stall_seconds = stall_seconds
        self._patience = START_SECONDS
        self._child: Child | None = None
        self._pending: dict[int, _Pending] = {}
        self._sequence = 0
        self._heard = time.monotonic()
        self.restarts = 0
        self.tier_bytes = {Tier.HOST: 0, Tier.DISK: 0}

    @property
    def pid(self) -> int | None:
        """Process id of the loader that runs now."""
        return self._child.pid if self._child else None

    async def run(self) -> None:
        """Keep a loader running, for ever."""
        while True:
            try:
                await self._run_once()
            finally:
                child, self._child = self._child, None
                status = await child.end() if child else None
            logger.warning("the loader ended with status %s and is started again", status)
            self.restarts += 1
            self._fail_repeated()
            await asyncio.sleep(RESTART_SECONDS)

    async def fetch_base(self, origin: Origin, digest: str) -> BaseFetched:
        """Have the base model's files. Raises JobError."""
        result = await self._submit(lambda job: FetchBase(job, origin, digest))
        assert isinstance(result, BaseFetched)
        self._config = replace(self._config, base_dir=result.model_dir)
        return result

    async def inspect(self, origin: Origin, digest: str | None) -> Inspected:
        """Fetch and verify an adapter. Raises JobError."""
        result = await self._submit(lambda job: InspectAdapter(job, origin, digest))
        assert isinstance(result, Inspected)
        return result

    async def pack(self, origin: Origin, digest: str) -> Packed:
        """Have an adapter's blob on the host tier, pinned until release(). Raises JobError."""
        result = await self._submit(lambda job: PackAdapter(job, origin, digest))
        assert isinstance(result, Packed)
        return result

    async def pack_for_merge(self, origin: Origin, digest: str) -> ForMerge:
        """Have an adapter's numbers for the loop to merge. Raises JobError."""
        result = await self._submit(lambda job: PackForMerge(job, origin, digest))
        assert isinstance(result, ForMerge)
        return result

    def release(self, digest: str, *, drop: bool = False) -> None:
        """Unpin a blob; `drop`: it should not stay on the host tier."""
        if self._child:
            self._child.send(Release(digest, drop))

    def warm_up(self) -> None:
        """Let the loader get ready for its first adapter."""
        if self._child:
            self._child.send(WarmUp())

    async def _submit(self, make: Callable[[int], Job]) -> JobResult:
        if len(self._pending) >= self._max_jobs:
            raise JobError(ProblemCode.LOADER_BUSY, f"{self._max_jobs} loader jobs are waiting already")
        self._sequence += 1
        pending = _Pending(make(self._sequence), asyncio.get_running_loop().create_future())
        if not self._pending:
            self._heard = time.monotonic()
        self._pending[pending.job.job] = pending
        if self._child:
            self._start(self._child, pending)
        try:
            return await pending.future
        finally:
            self._pending.pop(pending.job.job, None)

    async def _run_once(self) -> None:
        child = self._child = await Child.start("loader")
        child.send(self._config)
        logger.info("loader started, pid %d", child.pid)
        self._heard, self._patience = time.monotonic(), START_SECONDS
        for pending in self._pending.values():
            self._start(child, pending)
        receiving = asyncio.create_task(self._receive(child))
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait((receiving, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (receiving, watching):
                task.cancel()
            await asyncio.gather(receiving, watching, return_exceptions=True)

    async def _receive(self, child: Child) -> None:
        while True:
            try:
                message: FromLoader = await child.receive()
            except EOFError:
                return
            self._heard, self._patience = time.monotonic(), self._stall_seconds
            if isinstance(message, Heartbeat):
                self.tier_bytes = {Tier.HOST: message.host_bytes, Tier.DISK: message.disk_bytes}
            else:
                self._settle(message)

    async def _watch(self) -> None:
        """Return when a job waits for a loader that has been silent for too long."""
        while not (self._pending and time.monotonic() - self._heard > self._patience):  # noqa: ASYNC110 - silence is no event
            await asyncio.sleep(min(1.0, self._stall_seconds / 4))
        logger.error("the loader has been silent for %.0f s with jobs waiting: killing it", self._patience)

    def _start(self, child: Child, pending: _Pending) -> None:
        pending.starts += 1
        child.send(pending.job)

    def _settle(self, message: JobResult | JobFailed) -> None:
        pending = self._pending.get(message.job)
        if pending is None or pending.future.done():
            return
        if isinstance(message, JobFailed):
            pending.future.set_exception(JobError(message.code, message.message, message.reasons))
        else:
            pending.future.set_result(message)

    def _fail_repeated(self) -> None:
        for pending in self._pending.values():
            if pending.starts >= MAX_STARTS_PER_JOB and not pending.future.done():
                pending.future.set_exception(
                    JobError(ProblemCode.INTERNAL, "the loader died twice while it did this job")
                )
