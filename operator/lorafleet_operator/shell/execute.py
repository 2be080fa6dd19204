"""Carries plans out. Called by the pools' tasks right after planning; adds nothing to a plan and leaves nothing out."""

import asyncio
import logging
from collections.abc import Callable

from lorafleet_contracts.admin import PortName
from lorafleet_kube.errors import ApiError, KubeError
from lorafleet_operator.core.actions import Apply, Inspect, Load, Plan, StatusWrite, Unload, Warn
from lorafleet_operator.core.snapshot import PoolTokens
from lorafleet_operator.shell.admin import AdminAddress
from lorafleet_operator.shell.cluster import Cluster
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.observe import PoolMemory
from lorafleet_operator.shell.records import PodRecord
from lorafleet_operator.shell.watches import Watches

log = logging.getLogger(__name__)

WRITES_IN_FLIGHT = 8
MOVED = frozenset({404, 409})
UNWANTED = frozenset({400, 403, 422})

FindPod = Callable[[str], PodRecord | None]


class Executor:
    """Applies, calls and status writes of one process; writes are fenced further down."""

    def __init__(self, cluster: Cluster, watches: Watches, metrics: Metrics) -> None:
        self._cluster = cluster
        self._watches = watches
        self._metrics = metrics
        self._free = asyncio.Semaphore(WRITES_IN_FLIGHT)

    async def carry_out(self, plan: Plan, memory: PoolMemory, tokens: PoolTokens, find_pod: FindPod) -> None:
        """Apply in order, start the calls, write the statuses. Raises NotLeadingError or KubeError."""
        for action in plan.actions:
            if isinstance(action, Apply):
                await self._apply(action, memory)
            else:
                self._start(action, memory, tokens, find_pod)
        await self.write(plan.statuses)
        for warning in plan.warnings:
            await self._warn(warning)

    async def write(self, statuses: tuple[StatusWrite, ...]) -> None:
        """Write statuses, some at a time. Raises the first error after all have been tried."""
        outcomes = await asyncio.gather(*(self._write(each) for each in statuses), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _warn(self, warning: Warn) -> None:
        try:
            await self._cluster.warn(warning)
        except KubeError as error:
            # Events are a courtesy: the verdict itself says the same.
            log.warning("no event for %s/%s: %s", warning.about.namespace, warning.about.name, error)

    async def _apply(self, action: Apply, memory: PoolMemory) -> None:
        kind = action.key.partition("/")[0]
        try:
            answer = await self._cluster.apply(action)
        except ApiError as error:
            self._metrics.applies.labels(kind, "refused").inc()
            if error.code not in UNWANTED:
                raise
            log.warning("%s is refused: %s", action.key, error)
            memory.objects.note_refusal(action.key, action.fingerprint, error.message)
            return
        self._metrics.applies.labels(kind, "done").inc()
        generation = int(answer["metadata"].get("generation", 0))
        memory.objects.note(action.key, action.fingerprint, generation)

    def _start(
        self, action: Inspect | Load | Unload, memory: PoolMemory, tokens: PoolTokens, find_pod: FindPod
    ) -> None:
        pod = find_pod(action.replica if isinstance(action, Inspect) else action.target.replica)
        if pod is None or not pod.ip:
            return  # gone since the plan was made; its going wakes the next plan
        self._metrics.calls.labels(type(action).__name__.lower()).inc()
        memory.calls.start(action, AdminAddress(pod.ip, tokens.by_port[PortName.ADMIN.value][0]))

    async def _write(self, write: StatusWrite) -> None:
        async with self._free:
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
