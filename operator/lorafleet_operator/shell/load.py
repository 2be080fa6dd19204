"""One pool's load and what its replicas can do: the core's folds of the engines' counters, kept between two plans.

Called by the pool's task before and after each plan, and by the simulation.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from lorafleet_contracts.durations import parse_seconds
from lorafleet_operator.core.actions import Plan
from lorafleet_operator.core.capability import Effort, Gauge, found, observe, recall
from lorafleet_operator.core.popularity import Reading, Track, fold, warm
from lorafleet_operator.core.sets import kind_of
from lorafleet_operator.core.sizing import Needs, remember, shift
from lorafleet_operator.core.snapshot import PoolSnapshot

FOLD_SECONDS = 1.0
"""Plans that come sooner after another one use its track."""


class LoadMeter:
    """A cache: lost with the process, and warmed again by what the statuses say."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._track: Track | None = None
        self._gauge = Gauge()
        self._needs: dict[str, Needs] = {}
        self._told = float("-inf")

    def measure(self, snapshot: PoolSnapshot, wall: float) -> PoolSnapshot:
        """The snapshot with the load as of now, it being epoch second `wall`."""
        now = self._steady()
        if self._track is None:
            self._track = warm((each.meta.uid, each.status) for each in snapshot.adapters)
            self._gauge = recall(snapshot.pool.status.capacity)
        if self._track.at is None or now >= self._track.at + FOLD_SECONDS:
            self._look(snapshot, now)
        needs = {name: shift(each, wall - now) for name, each in self._needs.items()}
        return replace(snapshot, load=self._track, capacity=found(self._gauge), needs=needs)

    def note(self, plan: Plan) -> None:
        """Remember what the next plans must know of this one."""
        now = self._steady()
        if plan.tells_popularity:
            self._told = now
        self._needs = {name: remember(self._needs.get(name), need, now) for name, need in plan.needs.items()}

    def _look(self, snapshot: PoolSnapshot, now: float) -> None:
        states = [(each, each.state) for each in snapshot.replicas if each.state is not None]
        usage = (Reading(each.name, state.boot_id, state.seq, tuple(state.usage)) for each, state in states)
        self._track = fold(self._track or Track(), usage, now)
        if snapshot.pool.spec is None:
            return
        # Engines with an adapter in their weights do without what the others do beside the base.
        plain = (Effort.of(each.name, state) for each, state in states if kind_of(each.set) != "Merged")
        self._gauge = observe(self._gauge, plain, parse_seconds(snapshot.pool.spec.slo.itl), now)

    def told_at(self, wall: float) -> float:
        """When that was last, in epoch seconds, it being `wall` now."""
        return wall - (self._steady() - self._told)
