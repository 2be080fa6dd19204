"""One replica of the simulation: what is on its GPU, and what makes way there, by the engine's own rule."""

import heapq
import math
from collections.abc import Callable

from lorafleet_engine.loader.eviction import HALF_LIFE_S, Usage


class Replica:
    """Versions by number; `outstanding` requests run, `served` were ever sent here."""

    def __init__(self, budget: int) -> None:
        self.outstanding = 0
        self.served = 0
        self._free = budget
        self._on_gpu: set[int] = set()
        self._users: dict[int, int] = {}
        self._usage: dict[int, Usage] = {}
        self._worth: list[tuple[float, int, int]] = []
        self._uses: dict[int, int] = {}

    def begin(self, adapter: int, size: int, now: float) -> bool:
        """Send a request here; True when its adapter was not on the GPU."""
        self.outstanding += 1
        self.served += 1
        self._users[adapter] = self._users.get(adapter, 0) + 1
        usage = self._usage[adapter] = self._usage.get(adapter, Usage(0, 0)).used(now)
        cold = adapter not in self._on_gpu
        if cold and self._make_room(size):
            self._on_gpu.add(adapter)
            self._free -= size
        if adapter in self._on_gpu:
            uses = self._uses[adapter] = self._uses.get(adapter, 0) + 1
            heapq.heappush(self._worth, (worth(usage, size), adapter, uses))
        return cold

    def end(self, adapter: int) -> None:
        """A request is answered."""
        self.outstanding -= 1
        self._users[adapter] -= 1

    def drop(self, adapter: int, size: int) -> None:
        """Unload a version."""
        self._usage.pop(adapter, None)
        if adapter in self._on_gpu:
            self._on_gpu.discard(adapter)
            self._free += size

    def _make_room(self, size: int) -> bool:
        """Let those that are worth least and that nobody uses make way, one after another, until it fits."""
        busy = []
        while self._free < size and self._worth:
            entry = heapq.heappop(self._worth)
            _, victim, uses = entry
            if victim not in self._on_gpu or self._uses[victim] != uses:
                continue  # gone, or used again since
            if self._users.get(victim):
                busy.append(entry)
                continue
            self._on_gpu.discard(victim)
            self._free += self.size_of(victim)
        for entry in busy:
            heapq.heappush(self._worth, entry)
        return self._free >= size

    size_of: Callable[[int], int]


def worth(usage: Usage, size: int) -> float:
    """What the engine's rule (loader/eviction.py) sorts by, as a logarithm in which time cancels out."""
    return math.log2(usage.weight) + usage.at / HALF_LIFE_S - math.log2(size)
