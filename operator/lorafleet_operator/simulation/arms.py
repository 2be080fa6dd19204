"""What a run is compared with: the same requests on as many replicas, without placement. Called by the simulated day.

`hash`: each adapter has the one replica that rendezvous hashing gives it. `all`: every replica takes every adapter, a
request goes where the least work is outstanding. Both fetch an adapter when its first request comes and evict what was
used longest ago; a cold load is a request whose replica lacks the adapter on its GPU.
"""

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lorafleet_contracts.admin import Tier
from lorafleet_operator.simulation.calls import Files
from lorafleet_operator.simulation.engines import EngineProfile, Lanes
from lorafleet_operator.simulation.measures import Sample
from lorafleet_operator.simulation.run import Case, Loss

Policy = Literal["hash", "all"]


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """Cold requests in each interval of the run it is compared with, all of them, and p99 of the wait in seconds."""

    cold: Sequence[int]
    requests: int
    wait_p99: float

    @property
    def cold_share(self) -> float:
        """Of all requests."""
        return sum(self.cold) / self.requests if self.requests else 0.0


@dataclass(slots=True)
class _Replica:
    """One GPU with a cache of adapters, least lately used first, and what is fetched before is on its disk."""

    number: int
    budget: int
    lanes: Lanes
    held: OrderedDict[str, int] = field(default_factory=OrderedDict)
    fetched: set[str] = field(default_factory=set)
    used: int = 0
    busy: list[float] = field(default_factory=list)

    def outstanding(self, now: float) -> int:
        while self.busy and self.busy[0] <= now:
            heapq.heappop(self.busy)
        return len(self.busy)

    def take(self, uid: str, size: int) -> Tier | None:
        """Have an adapter on the GPU; returns the tier that it was on (None: at its source)."""
        if uid in self.held:
            self.held.move_to_end(uid)
            return Tier.GPU
        while self.held and self.used + size > self.budget:
            _, freed = self.held.popitem(last=False)
            self.used -= freed
        self.held[uid] = size
        self.used += size
        known = uid in self.fetched
        self.fetched.add(uid)
        return Tier.HOST if known else None

    def serve(self, now: float, profile: EngineProfile, extra: float, tokens: int) -> float:
        seconds = extra + profile.answer_seconds(tokens)
        start = self.lanes.take(now, seconds)
        heapq.heappush(self.busy, start + seconds)
        return start - now + extra


def run_arm(case: Case, samples: Sequence[Sample], policy: Policy) -> ArmOutcome:
    """The case's requests under a policy, on as many replicas as the run had at each sample."""
    fleet = _Fleet(case.profile, case.files, policy)
    losses = sorted(case.losses, key=lambda each: each.at)
    cold = [0] * len(samples)
    waits: list[float] = []
    place, arrivals = 0, case.arrivals
    fleet.resize(samples[0].gpus)
    for row, at in enumerate(arrivals.times.tolist()):
        while place + 1 < len(samples) and at >= samples[place].at:
            place += 1
            fleet.resize(samples[place].gpus)
        while losses and at >= losses[0].at:
            fleet.lose(losses.pop(0))
        uid = case.callers[arrivals.callers[row]].adapter
        was_cold, waited = fleet.serve(uid, at, int(arrivals.completion_tokens[row]))
        cold[place] += was_cold
        waits.append(waited)
    return ArmOutcome(cold, len(arrivals), float(np.percentile(waits, 99)) if waits else 0.0)


class _Fleet:
    def __init__(self, profile: EngineProfile, files: Mapping[str, Files], policy: Policy) -> None:
        self._profile = profile
        self._files = files
        self._replicas: list[_Replica] = []
        self._homes: dict[str, _Replica] = {}
        self._pick: Callable[[str, float], _Replica] = self._home if policy == "hash" else self._least

    def resize(self, count: int) -> None:
        """As many replicas as this; the last ones come and go."""
        if count == len(self._replicas):
            return
        del self._replicas[count:]
        while len(self._replicas) < max(count, 1):
            self._replicas.append(self._fresh(len(self._replicas)))
        self._homes.clear()

    def lose(self, loss: Loss) -> None:
        """One replica starts anew with nothing on it."""
        place = min(loss.place, len(self._replicas) - 1)
        self._replicas[place] = self._fresh(place)
        self._homes.clear()

    def serve(self, uid: str, now: float, tokens: int) -> tuple[bool, float]:
        """Answer one request; returns whether it was cold and for how long it waited."""
        replica, size = self._pick(uid, now), self._files[uid].bytes
        tier = replica.take(uid, size)
        cold = tier != Tier.GPU
        extra = self._profile.load_seconds(size, tier) if cold else 0.0
        return cold, replica.serve(now, self._profile, extra, tokens)

    def _fresh(self, number: int) -> _Replica:
        return _Replica(number, self._profile.memory.adapters, Lanes(self._profile.lanes))

    def _least(self, uid: str, now: float) -> _Replica:
        return min(self._replicas, key=lambda each: (each.outstanding(now), each.number))

    def _home(self, uid: str, now: float) -> _Replica:
        if uid not in self._homes:
            self._homes[uid] = max(self._replicas, key=lambda each: _weight(uid, each.number))
        return self._homes[uid]


def _weight(uid: str, number: int) -> bytes:
    return hashlib.sha256(f"{uid}/{number}".encode()).digest()
