"""One pool's load, kept between its task's plans: folds the engines' counters into a core Track. Called by the task."""

import time
from collections.abc import Callable
from dataclasses import replace

from lorafleet_operator.core.popularity import Reading, Track, fold, warm
from lorafleet_operator.core.snapshot import PoolSnapshot

FOLD_SECONDS = 1.0
"""Plans that come sooner after another one use its track."""


class LoadMeter:
    """A cache: lost with the process, and warmed again by the adapters' statuses."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._track: Track | None = None
        self._told = float("-inf")

    def measure(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """The snapshot with the load as of now."""
        now = self._steady()
        if self._track is None:
            self._track = warm((each.meta.uid, each.status) for each in snapshot.adapters)
        if self._track.at is None or now >= self._track.at + FOLD_SECONDS:
            readings = (
                Reading(each.name, each.state.boot_id, each.state.seq, tuple(each.state.usage))
                for each in snapshot.replicas
                if each.state is not None
            )
            self._track = fold(self._track, readings, now)
        return replace(snapshot, load=self._track)

    def note_told(self) -> None:
        """A status is being written for nothing but popularity."""
        self._told = self._steady()

    def told_at(self, wall: float) -> float:
        """When that was last, in epoch seconds, it being `wall` now."""
        return wall - (self._steady() - self._told)
