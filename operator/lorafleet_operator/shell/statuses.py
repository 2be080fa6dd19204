"""One task's statuses on their way to the API server. Filled by execute.py with what the newest plan wants; decides
nothing.

Planning does not wait for writes: what is not written when the next plan comes is replaced by what that one wants, so
that of several verdicts in a row only the last is written.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from lorafleet_kube.errors import ApiError, KubeError
from lorafleet_operator.core.actions import StatusWrite, Warn
from lorafleet_operator.errors import OperatorError
from lorafleet_operator.shell.cluster import Cluster
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.watches import Watches

log = logging.getLogger(__name__)

WRITERS = 16
MOVED = frozenset({404, 409})
UNWANTED = frozenset({400, 403, 413, 422, 500})
"""Answers to the content of one status (500: the API server can't apply it); other statuses may well be taken."""
REFUSED_SECONDS = 60.0
SUSPICIOUS = 5
"""From so many refusals in a row on, it is the API server that has a problem and not these objects."""


class StatusDesk:
    """The API server's statuses as every queue of a process writes them."""

    def __init__(self, cluster: Cluster, watches: Watches, metrics: Metrics) -> None:
        self._cluster = cluster
        self._watches = watches
        self._metrics = metrics

    async def write(self, write: StatusWrite, warning: Warn | None) -> None:
        """Write one status, then its event. Raises NotLeadingError or KubeError."""
        revision = self._watches.revision(write)
        if revision is None:
            return
        try:
            answer = await self._cluster.write_status(write, revision)
        except ApiError as error:
            if error.code in MOVED:
                return  # gone, or changed this moment: the next plan sees what it is now
            raise
        self._metrics.statuses.labels(write.kind).inc()
        self._watches.learn(write.kind, answer)
        if warning is None:
            return
        try:
            await self._cluster.warn(warning)
        except KubeError as error:
            # Events are a courtesy: the verdict itself says the same.
            log.warning("no event for %s/%s: %s", warning.about.namespace, warning.about.name, error)


class StatusQueue:
    """What waits to be written, most urgent first. `on_done` is called when nothing is left or a write has failed."""

    def __init__(self, desk: StatusDesk, on_done: Callable[[], None]) -> None:
        self._desk = desk
        self._on_done = on_done
        self._waiting: dict[tuple[str, str], tuple[StatusWrite, Warn | None]] = {}
        self._touched: set[tuple[str, str]] = set()
        self._busy: set[tuple[str, str]] = set()
        self._writers: set[asyncio.Task[None]] = set()
        self._error: KubeError | OperatorError | None = None
        self._refused: dict[tuple[str, str], float] = {}
        self._refusals = 0

    def start_plan(self) -> None:
        """Call it when the picture for the next plan is taken: what is written from now on, that plan does not know."""
        self._touched = set(self._busy)

    def want(self, statuses: Sequence[StatusWrite], warnings: Sequence[Warn] = ()) -> None:
        """Put these in the place of what waits. Raises the first error of the writes since the last call.

        What was or is being written since the plan's picture was taken is left out: the next plan sees what came of it.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        now = time.monotonic()
        self._refused = {key: until for key, until in self._refused.items() if until > now}
        skipped = self._touched | self._refused.keys()
        news = {(each.about.kind, each.about.uid): each for each in warnings}
        keys = ((each.kind, each.uid) for each in statuses)
        self._waiting = {
            key: (each, news.get(key)) for key, each in zip(keys, statuses, strict=True) if key not in skipped
        }
        for _ in range(min(len(self._waiting), WRITERS - len(self._writers))):
            writer = asyncio.create_task(self._write())
            self._writers.add(writer)
            writer.add_done_callback(self._ended)

    async def close(self) -> None:
        """Give up what waits."""
        self._waiting.clear()
        for writer in self._writers:
            writer.cancel()
        await asyncio.gather(*self._writers, return_exceptions=True)

    async def _write(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            write, warning = self._waiting.pop(key)
            self._busy.add(key)
            self._touched.add(key)
            try:
                await self._desk.write(write, warning)
                self._refusals = 0
            except (KubeError, OperatorError) as error:
                self._take(error, write)
            finally:
                self._busy.discard(key)

    def _take(self, error: KubeError | OperatorError, write: StatusWrite) -> None:
        """One refused status is put aside for a while; any other error ends the round."""
        self._refusals += 1
        if isinstance(error, ApiError) and error.code in UNWANTED and self._refusals < SUSPICIOUS:
            log.error("the status of %s %s/%s is refused: %s", write.kind, write.namespace, write.name, error)
            self._refused[write.kind, write.uid] = time.monotonic() + REFUSED_SECONDS
            return
        self._error = self._error or error
        self._waiting.clear()

    def _ended(self, writer: "asyncio.Task[None]") -> None:
        self._writers.discard(writer)
        if not writer.cancelled() and (bug := writer.exception()):
            log.error("a status writer broke", exc_info=bug)
        if not self._writers and not writer.cancelled():
            self._on_done()
