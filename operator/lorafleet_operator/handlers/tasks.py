"""One task a pool, and one for orphans: wait to be woken, then observe, plan, execute. Started by wakes.py.

Two plans of one pool never overlap. A task ends when its pool is gone from our own watch, never by a missed event.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from lorafleet_kube.errors import KubeError
from lorafleet_operator.core.actions import Plan
from lorafleet_operator.core.planning import plan_orphans, plan_pool
from lorafleet_operator.core.snapshot import PoolSnapshot
from lorafleet_operator.handlers.parts import Parts
from lorafleet_operator.shell.calls import PoolCalls
from lorafleet_operator.shell.load import LoadMeter
from lorafleet_operator.shell.objects import AppliedObjects
from lorafleet_operator.shell.observe import PoolMemory
from lorafleet_operator.shell.records import PoolKey
from lorafleet_operator.shell.statuses import StatusQueue

log = logging.getLogger(__name__)

DEBOUNCE_SECONDS = 0.2
BREATH = 2.0
"""A round that took T leaves at least so many T for everything else, the calls that it has started among it."""
LONGEST_PAUSE_SECONDS = 5.0
RESYNC_SECONDS = 60.0
LONGEST_BACKOFF_SECONDS = 60.0
PLAN_SECONDS = 60.0
CONTACT_SECONDS = 10.0
"""How long a first plan waits for the engines' states, so that no verdict rests on not having asked yet."""

Round = Callable[[], Awaitable[float | None]]


async def run_rounds(name: str, wake: asyncio.Event, one_round: Round) -> None:
    """Call `one_round` when woken, and again after the seconds it returns; a negative number ends it.

    Errors of the API server are logged and retried with backoff. Raises NotLeadingError.
    """
    failures = 0
    while True:
        started = time.monotonic()
        try:
            async with asyncio.timeout(PLAN_SECONDS):
                again_in = await one_round()
            failures = 0
        except (KubeError, TimeoutError) as error:
            failures += 1
            again_in = min(2.0**failures, LONGEST_BACKOFF_SECONDS)
            log.warning("%s: %s; trying again in %.0f s", name, error or "out of time", again_in)
        if again_in is not None and again_in < 0:
            return
        pause = min(max(DEBOUNCE_SECONDS, BREATH * (time.monotonic() - started)), LONGEST_PAUSE_SECONDS)
        try:
            async with asyncio.timeout(RESYNC_SECONDS if again_in is None else min(again_in, RESYNC_SECONDS)):
                await wake.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(pause)
        wake.clear()  # whatever comes from here on causes one more round


class PoolTask:
    """The one decider of a pool."""

    def __init__(self, key: PoolKey, parts: Parts) -> None:
        self._key = key
        self._parts = parts
        self._wake = asyncio.Event()
        statuses = StatusQueue(parts.desk, self.wake)
        calls = PoolCalls(parts.admin, self.wake, parts.secrets.read)
        self._memory = PoolMemory(calls, AppliedObjects(), statuses, LoadMeter())
        self._started = time.monotonic()
        self._shown = ""

    def wake(self) -> None:
        """Have it look again soon."""
        self._wake.set()

    async def run(self) -> None:
        """Decide until the pool is gone."""
        try:
            await run_rounds(f"pool {self._key[0]}/{self._key[1]}", self._wake, self._round)
        finally:
            self._parts.metrics.note_difference(self._shown, None)
            self._parts.metrics.board.forget(self._shown)
            await self._memory.close()

    async def _round(self) -> float | None:
        parts, now = self._parts, time.time()
        waited = time.monotonic() - self._started
        if waited < CONTACT_SECONDS and not parts.observer.heard_of_engines(self._key):
            return DEBOUNCE_SECONDS
        with parts.metrics.plan_seconds.time():
            self._memory.statuses.start_plan()
            snapshot = parts.observer.observe_pool(self._key, parts.keys(), self._memory, parts.tls_of)
            if snapshot is None:
                return -1.0
            # In a thread: a snapshot is frozen, and the Lease and the engines' answers must not wait for a large plan.
            plan = await asyncio.to_thread(self._decide, snapshot, now)
        self._show(snapshot)
        empty = not plan.actions and not plan.statuses
        parts.metrics.plans.labels("empty" if empty else "work").inc()
        await parts.executor.carry_out(
            plan, self._memory, snapshot.tokens, lambda name: parts.observer.pod(self._key, name)
        )
        return plan.again_in

    def _show(self, snapshot: PoolSnapshot) -> None:
        budget, metrics = snapshot.pool.status.budget, self._parts.metrics
        predicted = budget.predicted if budget else None
        self._shown = snapshot.pool.meta.uid
        metrics.board.show(snapshot)
        metrics.note_difference(self._shown, predicted.difference_percent if predicted else None)

    def _decide(self, snapshot: PoolSnapshot, now: float) -> Plan:
        return plan_pool(self._memory.load.measure(snapshot, now), now)


class OrphanTask:
    """Gives verdicts to adapters and tenants whose pool does not exist."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._wake = asyncio.Event()
        self._statuses = StatusQueue(parts.desk, self.wake)

    def wake(self) -> None:
        """Have it look again soon."""
        self._wake.set()

    async def run(self) -> None:
        """Decide for ever."""
        try:
            await run_rounds("orphans", self._wake, self._round)
        finally:
            await self._statuses.close()

    async def _round(self) -> float | None:
        self._statuses.start_plan()
        plan = plan_orphans(self._parts.observer.observe_orphans(), time.time())
        self._statuses.want(plan.statuses)
        return plan.again_in
