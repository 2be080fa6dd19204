"""The virtual clock: what happens when, in order. Called by all of the simulation; nothing else in it tells time."""

import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """Epoch seconds `now`, which only `run_until` moves."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Have `call` made in so many seconds; of equal moments, what was asked for first comes first."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), call))

    @property
    def next_event(self) -> float:
        """When the next call is due (infinity: nothing is)."""
        return self._events[0][0] if self._events else float("inf")

    def run_until(self, moment: float) -> None:
        """Make all calls that are due up to `moment`, then stand there."""
        while self._events and self._events[0][0] <= moment:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = moment
