"""The loader process's main loop: takes jobs off the pipe, runs them in a few threads, answers. Run by child.py.

It ends when the pipe ends. Nothing that a job meets ends it; the api restarts it if it dies all the same.
"""

import errno
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.jobs import Jobs
from lorafleet_engine.loader.messages import (
    HEARTBEAT_SECONDS,
    FetchBase,
    FromLoader,
    Heartbeat,
    InspectAdapter,
    Job,
    JobFailed,
    JobResult,
    PackForMerge,
    Release,
    ToLoader,
    WarmUp,
)

logger = logging.getLogger(__name__)
FETCHERS, PACKERS = 4, 8
"""Threads for inspections, which wait for sources, and for all else: a source that hangs holds up no other load."""
FULL = (errno.ENOSPC, errno.EDQUOT)
HELP_WHEN_FULL = "give the node more room, or the pool a smaller engine.memory.diskCache"


class _Outbox:
    """Sends from several threads, one whole message at a time."""

    def __init__(self, connection: "Connection[FromLoader, ToLoader]") -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: FromLoader) -> None:
        """Send a message; a parent that is gone is noticed by the reader."""
        with self._lock:
            try:
                self._connection.send(message)
            except OSError:
                logger.debug("the api is gone")


def run_loader(connection: "Connection[FromLoader, ToLoader]") -> None:
    """Serve jobs until the pipe ends. The first message is the LoaderConfig."""
    jobs = Jobs(connection.recv())  # type: ignore[arg-type]
    outbox = _Outbox(connection)
    stopped = threading.Event()
    threading.Thread(target=_beat, args=(jobs, outbox, stopped), daemon=True).start()
    fetchers, packers = ThreadPoolExecutor(FETCHERS), ThreadPoolExecutor(PACKERS)
    try:
        while True:
            message = connection.recv()
            if isinstance(message, Release):
                jobs.release(message.digest, drop=message.drop)
            elif isinstance(message, WarmUp):
                packers.submit(jobs.warm_up)
            else:
                workers = fetchers if isinstance(message, InspectAdapter) else packers
                workers.submit(_answer, jobs, message, outbox)
    except EOFError:
        stopped.set()
        for workers in (fetchers, packers):
            workers.shutdown(wait=False, cancel_futures=True)
        jobs.close()


def _beat(jobs: Jobs, outbox: _Outbox, stopped: threading.Event) -> None:
    while not stopped.wait(HEARTBEAT_SECONDS):
        outbox.send(Heartbeat(*jobs.tier_bytes()))


def _answer(jobs: Jobs, job: Job, outbox: _Outbox) -> None:
    try:
        outbox.send(_work(jobs, job)())
    except JobError as error:
        outbox.send(JobFailed(job.job, error.code, error.message, error.reasons))
    except Exception as error:
        logger.exception("job %d failed", job.job)
        if isinstance(error, OSError) and error.errno in FULL:
            outbox.send(JobFailed(job.job, ProblemCode.INTERNAL, f"{error.strerror}: {HELP_WHEN_FULL}"))
            return
        outbox.send(JobFailed(job.job, ProblemCode.INTERNAL, f"{type(error).__name__}: {error}"))


def _work(jobs: Jobs, job: Job) -> Callable[[], JobResult]:
    match job:
        case FetchBase():
            return lambda: jobs.fetch_base(job)
        case InspectAdapter():
            return lambda: jobs.inspect(job)
        case PackForMerge():
            return lambda: jobs.pack_for_merge(job)
        case _:
            return lambda: jobs.pack(job)
