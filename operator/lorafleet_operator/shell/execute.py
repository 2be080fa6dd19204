"""Carries plans out. Called by the pools' tasks right after planning; adds nothing to a plan and leaves nothing out."""

import logging
from collections.abc import Callable

from lorafleet_contracts.admin import PortName
from lorafleet_kube.errors import ApiError
from lorafleet_operator.core.actions import Apply, Delete, Inspect, Load, Plan, Unload
from lorafleet_operator.core.snapshot import PoolTokens
from lorafleet_operator.shell.admin import AdminAddress
from lorafleet_operator.shell.cluster import Cluster
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.observe import PoolMemory
from lorafleet_operator.shell.records import PodRecord

log = logging.getLogger(__name__)

UNWANTED = frozenset({400, 403, 422})

FindPod = Callable[[str], PodRecord | None]


class Executor:
    """Applies, calls and status writes of one process; writes are fenced further down."""

    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._metrics = metrics

    async def carry_out(self, plan: Plan, memory: PoolMemory, tokens: PoolTokens, find_pod: FindPod) -> None:
        """Apply and delete in order, start the calls, queue the statuses. Raises NotLeadingError or KubeError."""
        for action in plan.actions:
            if isinstance(action, Apply):
                await self._apply(action, memory)
            elif isinstance(action, Delete):
                await self._cluster.delete(action)
                memory.objects.forget(action.key)
            else:
                self._start(action, memory, tokens, find_pod)
        memory.calls.note_surplus(plan.surplus)
        memory.calls.note_leaving(plan.leaving)
        memory.load.note(plan)
        if plan.moves:
            memory.calls.note_moves()
        memory.statuses.want(plan.statuses, plan.warnings)

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
        token = tokens.by_port[PortName.ADMIN.value][0]
        memory.calls.start(action, AdminAddress(f"{pod.pool[0]}/{pod.name}", pod.ip, token, pod.server_name))
