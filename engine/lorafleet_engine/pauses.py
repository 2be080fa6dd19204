"""What keeps the interpreter from holding up a loop that must launch the next step in time, or an api that passes its
tokens on. Used by loop.py, server/engine.py and parallel/follower.py; by bench/, too, to measure what is deployed.

A full collection of a loop with hundreds of requests and versions takes longer than a step (11 ms measured), so it is
left for moments without requests. Nothing here makes cycles as a matter of course, so little is ever collected.
"""

import gc
from collections.abc import Callable

IDLE_S = 10.0
"""How long after a collection an idle loop collects again..."""
BUSY_S = 300.0
"""...and one that is never idle: one late step."""


def set_aside() -> None:
    """Leave what has been built so far out of all later collections: it stays."""
    gc.collect()
    gc.freeze()


def avoid_pauses() -> None:
    """The same, and no collection comes by itself before gc.enable is called."""
    set_aside()
    gc.disable()


class Collector:
    """Collects when it costs least, once avoid_pauses was called; before, the interpreter does it by itself."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._collected_at = clock()

    def rest(self, *, idle: bool) -> None:
        """Called once a turn of the loop."""
        if gc.isenabled() or self._clock() - self._collected_at < (IDLE_S if idle else BUSY_S):
            return
        gc.collect()
        self._collected_at = self._clock()
