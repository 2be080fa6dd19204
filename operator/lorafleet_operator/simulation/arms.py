"""What a run is compared with: the same requests on as many replicas, without placement. Called by the simulated day.

`hash`: each adapter has the one replica that rendezvous hashing gives it. `all`: every replica takes every adapter, a
request goes where the least work is outstanding. Both fetch an adapter when its first request comes and evict what was
used longest ago; a cold load is a request whose replica lacks the adapter on its GPU.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lorafleet_contracts.admin import Tier
from lorafleet_operator.simulation.batch import Answers, Asked, Batch
from lorafleet_operator.simulation.calls import Files
from lorafleet_operator.simulation.engines import EngineProfile
from lorafleet_operator.simulation.measures import Sample
from lorafleet_operator.simulation.run import Case, Loss

Policy = Literal["hash", "all"]


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """Cold requests in each interval of the run it is compared with, all requests, those that a lost replica broke off,
    and p99 of the others' wait in seconds."""

    cold: Sequence[int]
    requests: int
    broken: int
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
    batch: Batch
    held: OrderedDict[str, int] = field(default_factory=OrderedDict)
    fetched: set[str] = field(default_factory=set)
    used: int = 0

    def outstanding(self, now: float) -> int:
        self.batch.advance(now)
        return len(self.batch)

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


def run_arm(case: Case, samples: Sequence[Sample], policy: Policy) -> ArmOutcome:
    """The case's requests under a policy, on as many replicas as the run had at each sample."""
    fleet = _Fleet(case.profile, case.files, policy)
    losses = sorted(case.losses, key=lambda each: each.at)
    cold = [0] * len(samples)
    place, arrivals = 0, case.arrivals
    fleet.resize(samples[0].gpus)
    for row, at in enumerate(arrivals.times.tolist()):
        while place + 1 < len(samples) and at >= samples[place].at:
            place += 1
            fleet.resize(samples[place].gpus)
        while losses and at >= losses[0].at:
            fleet.lose(losses.pop(0), at)
        uid = case.callers[arrivals.callers[row]].adapter
        cold[place] += fleet.serve(uid, at, int(arrivals.completion_tokens[row]))
    answers = fleet.finish()
    p99 = float(np.percentile(answers.waits, 99)) if answers.waits else 0.0
    return ArmOutcome(cold, len(arrivals), answers.broken, p99)


class _Fleet:
    def __init__(self, profile: EngineProfile, files: Mapping[str, Files], policy: Policy) -> None:
        self._profile = profile
        self._files = files
        self._replicas: list[_Replica] = []
        self._homes: dict[str, _Replica] = {}
        self._answers = Answers()
        self._pick: Callable[[str, float], _Replica] = self._home if policy == "hash" else self._least

    def resize(self, count: int) -> None:
        """As many replicas as this; the last ones come and go."""
        if count == len(self._replicas):
            return
        for replica in self._replicas[count:]:
            replica.batch.finish()
        del self._replicas[count:]
        while len(self._replicas) < max(count, 1):
            self._replicas.append(self._fresh(len(self._replicas)))
        self._homes.clear()

    def lose(self, loss: Loss, now: float) -> None:
        """One replica starts anew with nothing on it."""
        place = min(loss.place, len(self._replicas) - 1)
        self._replicas[place].outstanding(now)
        self._replicas[place].batch.lose()
        self._replicas[place] = self._fresh(place)
        self._homes.clear()

    def serve(self, uid: str, now: float, tokens: int) -> bool:
        """Answer one request; returns whether it was cold."""
        replica, files = self._pick(uid, now), self._files[uid]
        tier = replica.take(uid, files.bytes)
        cold = tier != Tier.GPU
        extra = self._profile.load_seconds(files.bytes, tier) if cold else 0.0
        replica.batch.advance(now)
        replica.batch.add(Asked(("", uid), 0, tokens, files.rank, now), extra)
        return cold

    def finish(self) -> Answers:
        """Answer what is left; returns how long all took."""
        for replica in self._replicas:
            replica.batch.finish()
        return self._answers

    def _fresh(self, number: int) -> _Replica:
        return _Replica(number, self._profile.memory.adapters, Batch(self._profile.step, self._answers))

    def _least(self, uid: str, now: float) -> _Replica:
        return min(self._replicas, key=lambda each: (each.outstanding(now), each.number))

    def _home(self, uid: str, now: float) -> _Replica:
        if uid not in self._homes:
            self._homes[uid] = max(self._replicas, key=lambda each: _weight(uid, each.number))
        return self._homes[uid]


def _weight(uid: str, number: int) -> bytes:
    return hashlib.sha256(f"{uid}/{number}".encode()).digest()
