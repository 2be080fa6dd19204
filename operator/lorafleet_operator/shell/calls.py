"""One pool's running and remembered calls of its engines. A cache of the pool's task: lost with the process, no harm.

execute.py starts calls here, observe.py reads them as core Memory. `on_done` wakes the pool's task.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any

from lorafleet_contracts.admin import AdapterReport, Display, InspectRequest, SourceSpec, VersionRequest
from lorafleet_operator.core.actions import Inspect, Load, Unload
from lorafleet_operator.core.snapshot import Attempt, InspectionKey, Memory, VersionOn
from lorafleet_operator.errors import EngineError, NotLeadingError
from lorafleet_operator.shell.admin import AdminAddress, EngineAdmin

log = logging.getLogger(__name__)

INSPECTIONS_PER_REPLICA = 4
LOADS_PER_REPLICA = 4
FORGET_SECONDS = 900.0


class PoolCalls:
    """Starts calls with bounded parallelism per replica and keeps how they ended."""

    def __init__(self, admin: EngineAdmin, on_done: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        self._admin = admin
        self._on_done = on_done
        self._clock = clock
        self._inspections: dict[InspectionKey, Attempt] = {}
        self._inspecting: dict[InspectionKey, str] = {}
        self._loads: dict[VersionOn, Attempt] = {}
        self._unloads: dict[VersionOn, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots: dict[tuple[str, str], asyncio.Semaphore] = {}

    def memory(self) -> Memory:
        """What a snapshot may know of the calls."""
        return Memory(dict(self._inspections), dict(self._inspecting), dict(self._loads), dict(self._unloads))

    def start(self, action: Inspect | Load | Unload, address: AdminAddress) -> None:
        """Begin a call; its end is remembered and announced."""
        match action:
            case Inspect():
                self._begin(self._inspections, action.key)
                self._inspecting[action.key] = action.replica
                self._spawn(self._inspect(action, address))
            case Load():
                self._begin(self._loads, action.target)
                self._spawn(self._load(action, address))
            case Unload():
                self._begin(self._unloads, action.target)
                self._spawn(self._unload(action, address))

    def prune(self, living: Collection[InspectionKey], lives: Collection[tuple[str, str]]) -> None:
        """Forget inspections of other generations than `living` and versions on other (replica, boot id) than `lives`.

        What nobody has asked for again in a long while is forgotten, too: its adapter is gone.
        """
        now = self._clock()
        for key in [each for each, attempt in self._inspections.items() if each not in living and not attempt.pending]:
            del self._inspections[key]
        for calls in (self._loads, self._unloads):
            for target, attempt in list(calls.items()):
                dead = (target.replica, target.boot_id) not in lives
                if not attempt.pending and (dead or now > attempt.at + FORGET_SECONDS):
                    del calls[target]

    async def close(self) -> None:
        """Cancel what runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, calls: dict[Any, Attempt], key: InspectionKey | VersionOn) -> None:
        before = calls.get(key) or Attempt(pending=True, at=0.0)
        calls[key] = replace(before, pending=True, at=self._clock())

    def _spawn(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _inspect(self, action: Inspect, address: AdminAddress) -> None:
        request = InspectRequest(
            generation=action.key.generation, source=SourceSpec(uri=action.uri), digest=action.digest
        )

        async def call() -> AdapterReport:
            return await self._admin.inspect(address, action.key.uid, request)

        try:
            await self._settle(self._inspections, action.key, ("inspect", action.replica), call)
        finally:
            self._inspecting.pop(action.key, None)

    async def _load(self, action: Load, address: AdminAddress) -> None:
        target = action.target
        display = Display(namespace=action.namespace, name=action.name)
        request = VersionRequest(source=SourceSpec(uri=action.uri), display=display)

        async def call() -> None:
            await self._admin.load(address, (target.uid, target.digest), request)

        await self._settle(self._loads, target, ("load", target.replica), call, action.reason)

    async def _unload(self, action: Unload, address: AdminAddress) -> None:
        target = action.target

        async def call() -> None:
            await self._admin.unload(address, (target.uid, target.digest))
            # A later load of the same version must not be taken for one that has just succeeded.
            self._loads.pop(target, None)

        await self._settle(self._unloads, target, ("unload", target.replica), call)

    async def _settle(
        self,
        calls: dict[Any, Attempt],
        key: InspectionKey | VersionOn,
        slot: tuple[str, str],
        call: Callable[[], Coroutine[Any, Any, AdapterReport | None]],
        reason: str = "",
    ) -> None:
        """Run one call in a slot of its replica and remember how it ended."""
        limit = INSPECTIONS_PER_REPLICA if slot[0] == "inspect" else LOADS_PER_REPLICA
        free = self._slots.setdefault(slot, asyncio.Semaphore(limit))
        failures = calls[key].failures
        try:
            async with free:
                report = await call()
            calls[key] = Attempt(pending=False, at=self._clock(), report=report, reason=reason)
        except EngineError as error:
            log.info("%s of %s failed: %s", slot[0], key, error)
            calls[key] = Attempt(False, self._clock(), failures + 1, error.problem, reason=reason)
        except NotLeadingError:
            calls.pop(key, None)
        finally:
            self._on_done()
