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
from lorafleet_operator.core.actions import Fetch, Inspect, Load, Unload
from lorafleet_operator.core.snapshot import Attempt, InspectionKey, Memory, VersionOn
from lorafleet_operator.core.sources import trust_mark
from lorafleet_operator.errors import CredentialsError, EngineError, EngineUnreachableError, NotLeadingError
from lorafleet_operator.shell.admin import AdminAddress, EngineAdmin
from lorafleet_operator.shell.source_secrets import ReadCredentials

log = logging.getLogger(__name__)

INSPECTIONS_PER_REPLICA = 4
LOADS_PER_REPLICA = 4
FORGET_SECONDS = 900.0
JUMP_SECONDS = 1.0


class PoolCalls:
    """Starts calls with bounded parallelism per replica and keeps how they ended."""

    def __init__(
        self,
        admin: EngineAdmin,
        on_done: Callable[[], None],
        read: ReadCredentials,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._on_done = on_done
        self._read = read
        self._clock = clock
        self._steady = steady
        self._offset = clock() - steady()
        self._inspections: dict[InspectionKey, Attempt] = {}
        self._loads: dict[VersionOn, Attempt] = {}
        self._unloads: dict[VersionOn, Attempt] = {}
        self._silent: dict[str, float] = {}
        self._surplus: dict[VersionOn, float] = {}
        # A process that starts knows nothing of the moves of the one before: it makes none for a while.
        self._moved = steady()
        self._leaving: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots: dict[tuple[str, str], asyncio.Semaphore] = {}

    def memory(self) -> Memory:
        """What a snapshot may know of the calls."""
        self._follow_clock()
        silent = {name: at + self._offset for name, at in self._silent.items()}
        surplus = {target: at + self._offset for target, at in self._surplus.items()}
        return Memory(
            dict(self._inspections),
            dict(self._loads),
            dict(self._unloads),
            silent,
            surplus,
            moved_at=self._moved + self._offset,
            leaving={name: at + self._offset for name, at in self._leaving.items()},
        )

    def note_surplus(self, found: Collection[VersionOn]) -> None:
        """Remember since when these versions, and no others, have been of no use."""
        now = self._steady()
        self._surplus = {target: self._surplus.get(target, now) for target in found}

    def note_moves(self) -> None:
        """Remember that a version is being moved now."""
        self._moved = self._steady()

    def note_leaving(self, names: Collection[str]) -> None:
        """Remember since when these replicas, and no others, are to go."""
        now = self._steady()
        self._leaving = {name: self._leaving.get(name, now) for name in names}

    def start(self, action: Inspect | Load | Unload, address: AdminAddress) -> None:
        """Begin a call; its end is remembered and announced."""
        match action:
            case Inspect():
                mark = trust_mark(action.fetch.source.signers)
                self._begin(self._inspections, action.key, replica=action.replica, trust=mark)
                self._spawn(self._inspect(action, address))
            case Load():
                self._begin(self._loads, action.target, reason=action.choice.reason)
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

    def _begin(
        self,
        calls: dict[Any, Attempt],
        key: InspectionKey | VersionOn,
        *,
        replica: str = "",
        reason: str = "",
        trust: str = "",
    ) -> None:
        before = calls.get(key)
        if before is None or before.trust != trust:  # what was found for other signers says nothing of these
            before = Attempt(pending=True, at=0.0, trust=trust)
        calls[key] = replace(before, pending=True, at=self._clock(), replica=replica, reason=reason)

    def _follow_clock(self) -> None:
        """When the wall clock was set, move what is remembered along: waits are as long as they were."""
        offset = self._clock() - self._steady()
        jump, self._offset = offset - self._offset, offset
        if abs(jump) < JUMP_SECONDS:
            return
        log.warning("the clock was set by %.0f s", jump)
        for calls in (self._inspections, self._loads, self._unloads):
            for key, attempt in calls.items():
                calls[key] = replace(attempt, at=attempt.at + jump)  # type: ignore[index]  # a key of that very mapping

    def _spawn(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _inspect(self, action: Inspect, address: AdminAddress) -> None:
        async def call() -> AdapterReport:
            source = await self._opened(action.fetch)
            request = InspectRequest(generation=action.key.generation, source=source, digest=action.digest)
            return await self._admin.inspect(address, action.key.uid, request)

        await self._settle(self._inspections, action.key, ("inspect", action.replica), call)

    async def _load(self, action: Load, address: AdminAddress) -> None:
        target = action.target
        display = Display(namespace=action.namespace, name=action.name)
        choice = action.choice

        async def call() -> None:
            source = await self._opened(action.fetch)
            request = VersionRequest(source=source, tier=choice.tier, pinned=choice.pinned, display=display)
            await self._admin.load(address, (target.uid, target.digest), request)

        await self._settle(self._loads, target, ("load", target.replica), call)

    async def _unload(self, action: Unload, address: AdminAddress) -> None:
        target = action.target

        async def call() -> None:
            await self._admin.unload(address, (target.uid, target.digest))
            # A later load of the same version must not be taken for one that has just succeeded.
            self._loads.pop(target, None)

        await self._settle(self._unloads, target, ("unload", target.replica), call)

    async def _opened(self, fetch: Fetch) -> SourceSpec:
        """The source with its credentials, which are read anew for every call and kept nowhere. Raises EngineError."""
        if fetch.secret is None:
            return fetch.source
        credentials = await self._read(fetch.secret, fetch.source.uri)
        return fetch.source.model_copy(update={"credentials": credentials})

    async def _settle(
        self,
        calls: dict[Any, Attempt],
        key: InspectionKey | VersionOn,
        slot: tuple[str, str],
        call: Callable[[], Coroutine[Any, Any, AdapterReport | None]],
    ) -> None:
        """Run one call in a slot of its replica and remember how it ended."""
        limit = INSPECTIONS_PER_REPLICA if slot[0] == "inspect" else LOADS_PER_REPLICA
        free = self._slots.setdefault(slot, asyncio.Semaphore(limit))
        begun, asked = calls[key], self._steady()
        try:
            async with free:
                if self._silent.get(slot[1], asked) > asked:
                    raise EngineUnreachableError(f"{slot[1]} has just left another call without an answer")
                report = await self._heard(slot[1], call)
            calls[key] = replace(begun, pending=False, at=self._clock(), failures=0, problem=None, report=report)
        except EngineError as error:
            log.info("%s of %s failed: %s", slot[0], key, error)
            failures = begun.failures + 1
            calls[key] = replace(begun, pending=False, at=self._clock(), failures=failures, problem=error.problem)
        except NotLeadingError:
            calls.pop(key, None)
        finally:
            self._on_done()

    async def _heard(
        self, replica: str, call: Callable[[], Coroutine[Any, Any, AdapterReport | None]]
    ) -> AdapterReport | None:
        """Make a call, and remember whether the replica answers at all."""
        try:
            answer = await call()
        except CredentialsError:
            raise  # which says nothing of the replica
        except EngineUnreachableError:
            self._silent[replica] = self._steady()
            raise
        except EngineError:
            self._silent.pop(replica, None)
            raise
        self._silent.pop(replica, None)
        return answer
