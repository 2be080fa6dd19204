"""Calls of simulated engines' admin ports: what they take, how they end, what the pool's task remembers of them.

Called by the run with the actions of a plan; the counterpart of shell/calls.py with its bounds, on a virtual clock.
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from lorafleet_contracts.admin import AdapterReport, Problem, ProblemCode, Tier, VersionPhase, VersionState
from lorafleet_operator.core.actions import Inspect, Load, Unload
from lorafleet_operator.core.places import Choice
from lorafleet_operator.core.snapshot import Attempt, InspectionKey, Memory, VersionOn
from lorafleet_operator.core.sources import trust_mark
from lorafleet_operator.simulation.clock import Clock
from lorafleet_operator.simulation.engines import Engine

SLOTS = 4
"""Inspections, and loads, that run at once on one replica."""
INSPECT_SECONDS = 0.05

Finish = Callable[[], Problem | None]


@dataclass(frozen=True, slots=True)
class Files:
    """What an adapter's files are: bytes once packed, largest rank, modules, the base that they name, and their digest
    where the spec declares one."""

    uri: str
    bytes: int
    rank: int
    target_modules: tuple[str, ...]
    base: str
    declared: str | None = None

    @property
    def digest(self) -> str:
        """The declared one, else made up from the address: the simulation reads no files."""
        return self.declared or f"sha256:{hashlib.sha256(self.uri.encode()).hexdigest()}"


class Calls:
    """Starts calls and keeps how they ended. `find` gives the running engine of a replica, if any."""

    def __init__(
        self,
        clock: Clock,
        files: Mapping[str, Files],
        find: Callable[[str], Engine | None],
        on_done: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._files = files
        self._find = find
        self._on_done = on_done
        self._inspections: dict[InspectionKey, Attempt] = {}
        self._loads: dict[VersionOn, Attempt] = {}
        self._unloads: dict[VersionOn, Attempt] = {}
        self._surplus: dict[VersionOn, float] = {}
        self._moved = clock.now
        self._leaving: dict[str, float] = {}
        self._running: dict[tuple[str, str], int] = defaultdict(int)
        self._waiting: dict[tuple[str, str], deque[Callable[[], None]]] = defaultdict(deque)
        self.loads = 0
        self.loaded_bytes = 0

    def memory(self) -> Memory:
        """What a snapshot may know of the calls."""
        calls = (dict(self._inspections), dict(self._loads), dict(self._unloads))
        return Memory(*calls, {}, dict(self._surplus), moved_at=self._moved, leaving=dict(self._leaving))

    def note_leaving(self, names: Collection[str]) -> None:
        """Remember since when these replicas, and no others, are to go."""
        self._leaving = {name: self._leaving.get(name, self._clock.now) for name in names}

    def note_surplus(self, found: Collection[VersionOn]) -> None:
        """Remember since when these versions, and no others, have been of no use."""
        self._surplus = {target: self._surplus.get(target, self._clock.now) for target in found}

    def note_moves(self) -> None:
        """Remember that a version is being moved now."""
        self._moved = self._clock.now

    def forget(self, lives: Collection[tuple[str, str]]) -> None:
        """Drop what is remembered of engines that are gone; `lives` are the (replica, boot id) that are there."""
        for calls in (self._loads, self._unloads):
            for target in [each for each in calls if (each.replica, each.boot_id) not in lives]:
                del calls[target]

    def inspect(self, action: Inspect) -> None:
        """Fetch and verify: afterwards the files are on that replica's disk tier."""
        key, files = action.key, self._files[action.key.uid]
        mark = trust_mark(action.fetch.source.signers)
        self._inspections[key] = Attempt(pending=True, at=self._clock.now, replica=action.replica, trust=mark)

        def end() -> None:
            engine, begun = self._find(action.replica), self._inspections[key]
            if engine is None:
                self._inspections[key] = _failed(begun, self._clock.now, _unreachable(action.replica))
                return
            engine.on_disk.add(files.digest)
            report = AdapterReport(
                digest=files.digest,
                bytes=files.bytes,
                rank=files.rank,
                target_modules=list(files.target_modules),
                base=files.base,
            )
            self._inspections[key] = replace(begun, pending=False, at=self._clock.now, report=report)

        engine = self._find(action.replica)
        rate = engine.profile.source_rate if engine else 1.0
        self._queue(("inspect", action.replica), INSPECT_SECONDS + files.bytes / rate, end)

    def load(self, action: Load) -> None:
        """Bring a version onto its tier, from the disk tier where its files are there already."""
        target, files = action.target, self._files[action.target.uid]
        before = self._loads.get(target) or Attempt(pending=True, at=0.0)
        self._loads[target] = replace(before, pending=True, at=self._clock.now, reason=action.choice.reason)

        def end() -> None:
            problem = self._end_load(target, files, action.choice)
            begun, now = self._loads.get(target), self._clock.now
            if begun is None:
                return  # that life of the replica is over
            done = replace(begun, pending=False, at=now, failures=0, problem=None)
            self._loads[target] = done if problem is None else _failed(begun, now, problem)

        engine = self._find(target.replica)
        seconds = 0.0
        if engine is not None:
            seconds = engine.profile.load_seconds(files.bytes, Tier.DISK if target.digest in engine.on_disk else None)
        self._queue(("load", target.replica), seconds, end)

    def unload(self, action: Unload) -> None:
        """Free a version; requests that run with it are taken to end meanwhile."""
        target = action.target
        self._unloads[target] = Attempt(pending=True, at=self._clock.now)

        def end() -> None:
            engine = self._alive(target)
            if engine is not None:
                engine.drop(target.version)
            self._loads.pop(target, None)
            if target in self._unloads:
                self._unloads[target] = Attempt(pending=False, at=self._clock.now)

        self._queue(("unload", target.replica), 0.01, end)

    def _end_load(self, target: VersionOn, files: Files, choice: Choice) -> Problem | None:
        engine = self._alive(target)
        if engine is None:
            return _unreachable(target.replica)
        held = engine.versions.get(target.version)
        if held is not None:
            engine.put(held.model_copy(update={"wanted": choice.tier, "pinned": choice.pinned}))
            if choice.tier is Tier.GPU:
                engine.raise_version(held.key)
            return None
        free = engine.room_for(files.bytes) if choice.tier is Tier.GPU else None
        if free is not None:
            return Problem(
                title="does not fit", status=413, code=ProblemCode.DOES_NOT_FIT, needed=files.bytes, free=max(free, 0)
            )
        engine.put(resident(target.uid, files, choice.tier, choice.pinned))
        self.loads += 1
        self.loaded_bytes += files.bytes
        return None

    def _alive(self, target: VersionOn) -> Engine | None:
        engine = self._find(target.replica)
        return engine if engine is not None and engine.boot_id == target.boot_id else None

    def _queue(self, slot: tuple[str, str], seconds: float, end: Callable[[], None]) -> None:
        """Run a call that takes `seconds` once its replica has a slot free."""

        def finish() -> None:
            end()
            self._running[slot] -= 1
            if self._waiting[slot]:
                self._waiting[slot].popleft()()
            self._on_done()

        def begin() -> None:
            self._running[slot] += 1
            self._clock.after(seconds, finish)

        if self._running[slot] < SLOTS:
            begin()
        else:
            self._waiting[slot].append(begin)


def _failed(begun: Attempt, now: float, problem: Problem) -> Attempt:
    return replace(begun, pending=False, at=now, failures=begun.failures + 1, problem=problem)


def _unreachable(replica: str) -> Problem:
    return Problem(title=f"{replica} gives no answer", status=503, code=ProblemCode.INTERNAL)


def resident(uid: str, files: Files, tier: Tier = Tier.GPU, pinned: bool = False) -> VersionState:
    """A version that answers, on a tier."""
    return VersionState(
        uid=uid,
        digest=files.digest,
        tier=tier,
        wanted=tier,
        pinned=pinned,
        phase=VersionPhase.RESIDENT,
        rank=files.rank,
        bytes=files.bytes,
    )
