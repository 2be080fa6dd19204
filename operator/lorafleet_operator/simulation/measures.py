"""What a run came to: counts while it goes on, a sample each minute, an outcome at its end. Called by the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lorafleet_contracts.admin import Tier
from lorafleet_contracts.conditions import ConditionType, find_condition
from lorafleet_operator.core.snapshot import Adapter, Pool, Tenant
from lorafleet_operator.simulation.calls import Calls
from lorafleet_operator.simulation.cluster import Cluster
from lorafleet_operator.simulation.traffic import Caller


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval that ended at `at` (seconds since traffic began). `sets` counts replicas by set."""

    at: float
    sets: Mapping[str, int]
    requests: int
    cold: int
    unserved: int
    loads: int

    @property
    def gpus(self) -> int:
        """Replicas of all sets."""
        return sum(self.sets.values())


@dataclass(frozen=True, slots=True)
class Stage:
    """A tenant's promotion has come to a stage, at `at` seconds since traffic began."""

    at: float
    tenant: str
    stage: str
    reason: str
    set: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Callers:
    """Requests by caller: all, those that waited for their adapter, those that no replica could answer."""

    requests: Sequence[int]
    cold: Sequence[int]
    unserved: Sequence[int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run. `loads` are those during traffic, `wait` is (p50, p99) of seconds before a request's first step,
    `latency` (mean, p90) of those until its last; `broken` requests, which a lost replica had, have no part in either.
    `tiers` says on which tier each adapter (uid) is at the end, the nearest of all replicas', `served` counts requests
    by replica."""

    samples: Sequence[Sample]
    callers: Callers
    loads: int
    wait: tuple[float, float]
    latency: tuple[float, float]
    broken: int
    served: Mapping[str, int]
    pool: Pool
    adapters: Sequence[Adapter]
    tenants: Sequence[Tenant]
    tiers: Mapping[str, str]
    stages: Sequence[Stage]


class Meter:
    """Counts during a run."""

    def __init__(self, callers: Sequence[Caller], sample_seconds: float) -> None:
        self._callers = callers
        self._sample_seconds = sample_seconds
        self._requests = [0] * len(callers)
        self._cold = [0] * len(callers)
        self._unserved = [0] * len(callers)
        self._samples: list[Sample] = []
        self._before = (0, 0, 0, 0)
        self._first_load = 0
        self._stages: list[Stage] = []

    def begin(self, cluster: Cluster, calls: Calls) -> None:
        """Traffic begins: what was loaded before does not count."""
        self._first_load = calls.loads
        self._before = (0, 0, 0, calls.loads)

    def served(self, caller: int, cold: bool) -> None:
        """A request went to a replica."""
        self._requests[caller] += 1
        self._cold[caller] += cold

    def unserved(self, caller: int) -> None:
        """No replica had any version for a request."""
        self._requests[caller] += 1
        self._unserved[caller] += 1

    def staged(self, stage: Stage) -> None:
        """A tenant's promotion has moved on."""
        self._stages.append(stage)

    def sample(self, at: float, cluster: Cluster, calls: Calls) -> None:
        """An interval has ended."""
        now = (sum(self._requests), sum(self._cold), sum(self._unserved), calls.loads)
        grown = [new - old for new, old in zip(now, self._before, strict=True)]
        self._before = now
        sets = dict(cluster.gpus())
        self._samples.append(Sample(at, sets, grown[0], grown[1], grown[2], grown[3]))

    def outcome(self, cluster: Cluster) -> Outcome:
        """All of it, once the engines have answered what they have."""
        engines = [pod.engine for pod in cluster.pods() if pod.engine]
        for engine in engines:
            engine.finish()
        waits, latencies = (np.array(each or [0.0]) for each in (cluster.answers.waits, cluster.answers.latencies))
        return Outcome(
            samples=self._samples,
            callers=Callers(self._requests, self._cold, self._unserved),
            loads=self._before[3] - self._first_load,
            wait=(float(np.percentile(waits, 50)), float(np.percentile(waits, 99))),
            latency=(float(latencies.mean()), float(np.percentile(latencies, 90))),
            broken=cluster.answers.broken,
            served={each.name: each.served for each in engines},
            pool=cluster.pool,
            adapters=tuple(cluster.adapters.values()),
            tenants=tuple(cluster.tenants.values()),
            tiers=_tiers(cluster),
            stages=self._stages,
        )


def _tiers(cluster: Cluster) -> dict[str, str]:
    held: dict[str, set[Tier]] = {}
    for pod in cluster.pods():
        for version in pod.engine.versions.values() if pod.engine else ():
            held.setdefault(version.uid, set()).add(version.tier)
    return {uid: next(tier.value for tier in Tier if tier in tiers) for uid, tiers in held.items()}


def reason_of(adapter: Adapter) -> str:
    """Why an adapter is not Ready, "" where it is."""
    ready = find_condition(adapter.status.conditions, ConditionType.READY)
    if ready is None:
        return "no verdict"
    return "" if ready.status == "True" else f"{ready.reason}: {ready.message}".rstrip(": ")
