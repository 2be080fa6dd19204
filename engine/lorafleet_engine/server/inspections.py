"""Inspections by (uid, generation): started once, remembered, so that asking again is harmless. Used by admin.py."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from lorafleet_contracts.admin import AdapterReport, InspectRequest
from lorafleet_engine.loader.messages import AdapterFacts
from lorafleet_engine.loader.origin import origin_of
from lorafleet_engine.server.loader_client import LoaderClient

REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Inspection:
    request: InspectRequest
    task: "asyncio.Task[AdapterReport]"


class Inspections:
    """Running and finished inspections, one a uid; the longest unasked ones are forgotten."""

    def __init__(self, loader: LoaderClient) -> None:
        self._loader = loader
        self._known: OrderedDict[str, _Inspection] = OrderedDict()

    async def ask(self, uid: str, request: InspectRequest, patience: float) -> AdapterReport | None:
        """The report; None while it takes longer than `patience` seconds. Raises JobError, once for each attempt."""
        known = self._known.get(uid)
        if known is None or known.request != request:
            if known is not None:
                known.task.cancel()
            known = _Inspection(request, asyncio.create_task(self._inspect(request)))
            self._known[uid] = known
        self._known.move_to_end(uid)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)[1].task.cancel()
        await asyncio.wait((known.task,), timeout=patience)
        if not known.task.done():
            return None
        if known.task.cancelled() or known.task.exception() is not None:
            if self._known.get(uid) is known:
                del self._known[uid]
            return None if known.task.cancelled() else known.task.result()
        return known.task.result()

    async def _inspect(self, request: InspectRequest) -> AdapterReport:
        found = await self._loader.inspect(origin_of(request.source), request.digest)
        return _report(found.facts)


def _report(facts: AdapterFacts) -> AdapterReport:
    return AdapterReport(
        digest=facts.digest,
        bytes=facts.device_bytes,
        rank=facts.rank,
        target_modules=list(facts.target_modules),
        base=facts.base,
        warnings=list(facts.warnings),
    )
