"""Runs a pool's manifests over simulated traffic and sums up. Called by `lorafleet plan`.

Nothing here decides: replicas, places and promotions are what `plan_pool` did in the run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from lorafleet_contracts.capacity import effective_capacity, pool_size
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolStatus
from lorafleet_operator.core.capability import ASSUMED_PENALTY_PERCENT, ASSUMED_REQUESTS_PER_S, Capacity
from lorafleet_operator.core.snapshot import Adapter, Pool, Tenant
from lorafleet_operator.simulation.batch import step_time
from lorafleet_operator.simulation.demand import Demand, Ranks, assume_files, members_of
from lorafleet_operator.simulation.engines import EngineProfile
from lorafleet_operator.simulation.hardware import BaseShape, assumed_memory, replica_memory
from lorafleet_operator.simulation.measures import Outcome, Sample, Stage, reason_of
from lorafleet_operator.simulation.run import Case, simulate
from lorafleet_operator.simulation.traffic import Arrivals, Caller

ASSUMED_CAPACITY = Fraction(ASSUMED_REQUESTS_PER_S)
MOST_REPLICAS = 1000
PEAK_SECONDS = 300.0
"""A tenant's peak is its busiest interval of this length."""
SETTLE_SHARE = 0.5
LONGEST_SETTLE_SECONDS = 3600.0
"""What comes before does not count as needed: popularity is not known yet."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What manifests don't say. None: not given, so assumed."""

    base: BaseShape
    gpu: str | None
    capacity: Fraction | None
    penalty_percent: int | None
    ranks: Ranks
    known: Mapping[str, LoraAdapterStatus]


@dataclass(frozen=True, slots=True)
class Forecast:
    """A summed-up run. `capacity` is one replica's with adapters, in requests per second; `wait` is (p50, p99)."""

    pool: str
    gpus: int
    gpus_mean: float
    gpus_dedicated: int
    gpus_per_replica: int
    sets: Mapping[str, int]
    capacity: float
    capacity_source: str
    requests: int
    cold: int
    unserved: int
    moves_per_hour: float
    wait: tuple[float, float]
    adapters: Sequence[Mapping[str, Any]]
    refused: Sequence[Mapping[str, Any]]
    promotions: Sequence[Mapping[str, Any]]
    rank_classes: str
    samples: Sequence[Sample]
    assumptions: Sequence[str]

    def wire(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "pool": self.pool,
            "gpus": self.gpus,
            "gpus_mean": round(self.gpus_mean, 2),
            "gpus_dedicated": self.gpus_dedicated,
            "sets": dict(self.sets),
            "replica": {"requests_per_s": self.capacity, "source": self.capacity_source},
            "requests": self.requests,
            "cold_load_share": round(self.cold / self.requests, 6) if self.requests else 0.0,
            "unserved_share": round(self.unserved / self.requests, 6) if self.requests else 0.0,
            "moves_per_hour": round(self.moves_per_hour, 2),
            "wait_seconds": {"p50": round(self.wait[0], 4), "p99": round(self.wait[1], 4)},
            "cold": [each for each in self.adapters if each["cold"] or each["tier"] != "gpu"],
            "refused": list(self.refused),
            "promotions": list(self.promotions),
            "rank_classes": self.rank_classes,
            "assumptions": list(self.assumptions),
        }


def forecast(
    objects: tuple[Pool, tuple[Adapter, ...], tuple[Tenant, ...]],
    namespaces: Mapping[str, Mapping[str, str]],
    terms: Terms,
    demand: Demand,
    arrivals: Arrivals,
) -> Forecast:
    """Simulate one pool. Raises BaseDoesNotFitError or ShardError when no replica could ever run."""
    pool, adapters, tenants = objects
    assert pool.spec is not None
    capacity = terms.capacity or ASSUMED_CAPACITY
    penalty = ASSUMED_PENALTY_PERCENT if terms.penalty_percent is None else terms.penalty_percent
    effective = effective_capacity(capacity, penalty)
    seconds = math.ceil(float(arrivals.times[-1]) / 60.0) * 60.0 or 60.0
    memory = replica_memory(pool.spec, terms.base.shape, terms.gpu)
    files = assume_files(pool.spec, adapters, terms.base.shape, terms.ranks, terms.known)
    members = members_of(demand.callers, arrivals, files)
    step = step_time(float(effective), float(capacity), _mean(arrivals), members)
    case = Case(
        pool=unbound(pool),
        adapters=adapters,
        tenants=tenants,
        namespaces=namespaces,
        files=files,
        profile=EngineProfile(pool.spec.base_model.name, memory, step),
        callers=demand.callers,
        arrivals=arrivals,
        seconds=seconds,
        capacity=_measured(terms.capacity, penalty, arrivals),
        replicas=pool_size(Fraction(len(arrivals) / seconds), effective, pool.spec.replicas.redundancy),
    )
    outcome = simulate(case)
    return _sum_up(case, outcome, _Price(float(capacity), float(effective)), _assumptions(terms, case))


def unbound(pool: Pool) -> Pool:
    """The pool as it would size itself if its owner set no upper bound."""
    assert pool.spec is not None
    replicas = pool.spec.replicas.model_copy(update={"max": MOST_REPLICAS, "mode": "Managed", "desired": 1})
    return replace(pool, spec=pool.spec.model_copy(update={"replicas": replicas}), status=LoraPoolStatus())


def _measured(capacity: Fraction | None, penalty_percent: int, arrivals: Arrivals) -> Capacity | None:
    """A given capacity counts as measured, with requests of the mean length."""
    if capacity is None:
        return None
    length = float(np.mean(arrivals.prompt_tokens + arrivals.completion_tokens))
    return Capacity(float(capacity), float(capacity) * length, penalty_percent, measured=True)


def _mean(arrivals: Arrivals) -> float:
    return max(float(np.mean(arrivals.completion_tokens)), 1.0)


@dataclass(frozen=True, slots=True)
class _Price:
    base_capacity: float
    capacity: float


def _sum_up(case: Case, outcome: Outcome, price: _Price, assumptions: Sequence[str]) -> Forecast:
    spec = case.pool.spec
    per_replica = spec.engine.tensor_parallel if spec else 1
    settle = min(case.seconds * SETTLE_SHARE, LONGEST_SETTLE_SECONDS)
    late = [each for each in outcome.samples if each.at > settle] or outcome.samples[-1:]
    busiest = max(late, key=lambda each: each.gpus)
    peaks = tenant_peaks(case.tenants, case.callers, case.arrivals)
    meta = case.pool.meta
    return Forecast(
        pool=f"{meta.namespace}/{meta.name}",
        gpus=busiest.gpus * per_replica,
        gpus_mean=sum(each.gpus for each in late) / len(late) * per_replica,
        gpus_dedicated=sum(max(1, math.ceil(each / price.base_capacity)) for each in peaks.values()) * per_replica,
        gpus_per_replica=per_replica,
        sets={name: count * per_replica for name, count in busiest.sets.items()},
        capacity=price.capacity,
        capacity_source="Assumed" if any("--capacity-rps" in each for each in assumptions) else "Given",
        requests=sum(outcome.callers.requests),
        cold=sum(outcome.callers.cold),
        unserved=sum(outcome.callers.unserved),
        moves_per_hour=outcome.loads / (case.seconds / 3600.0),
        wait=outcome.wait,
        adapters=_adapters(case, outcome),
        refused=[
            {"adapter": _name(each), "reason": reason} for each in outcome.adapters if (reason := reason_of(each))
        ],
        promotions=_promotions(outcome.stages),
        rank_classes=classes.message if (classes := outcome.pool.status.rank_classes) else "",
        samples=outcome.samples,
        assumptions=assumptions,
    )


def tenant_peaks(tenants: Sequence[Tenant], callers: Sequence[Caller], arrivals: Arrivals) -> dict[str, float]:
    """Each tenant's requests per second in its busiest PEAK_SECONDS."""
    names = sorted({f"{each.meta.namespace}/{each.meta.name}" for each in tenants})
    places = {name: place for place, name in enumerate(names)}
    who = np.array([places[each.tenant] for each in callers], dtype=np.int64)[arrivals.callers]
    width = min(PEAK_SECONDS, float(arrivals.times[-1])) or 1.0
    slots = (arrivals.times // width).astype(np.int64)
    return {name: float(np.bincount(slots[who == place], minlength=1).max()) / width for name, place in places.items()}


def _adapters(case: Case, outcome: Outcome) -> list[dict[str, Any]]:
    counts: dict[str, list[int]] = {}
    for place, caller in enumerate(case.callers):
        row = counts.setdefault(caller.adapter, [0, 0])
        row[0] += outcome.callers.requests[place]
        row[1] += outcome.callers.cold[place] + outcome.callers.unserved[place]
    return [
        {
            "adapter": _name(each),
            "tier": outcome.tiers.get(each.meta.uid, "source"),
            "requests": counts.get(each.meta.uid, [0, 0])[0],
            "cold": counts.get(each.meta.uid, [0, 0])[1],
        }
        for each in outcome.adapters
    ]


def _promotions(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Every step of tenants towards replicas of their own and back, in order."""
    return [
        {
            "at_s": round(each.at),
            "tenant": each.tenant,
            "stage": each.stage,
            "reason": each.reason,
            "set": each.set,
            "message": each.message,
        }
        for each in stages
    ]


def _name(adapter: Adapter) -> str:
    return f"{adapter.meta.namespace}/{adapter.meta.name}"


def _assumptions(terms: Terms, case: Case) -> list[str]:
    spec = case.pool.spec
    told = [terms.base.assumption, assumed_memory(spec, terms.gpu) if spec else ""]
    told = [each for each in told if each]
    if terms.capacity is None:
        told.append(f"a replica serves {float(ASSUMED_CAPACITY):g} requests/s without adapters (--capacity-rps)")
    if terms.penalty_percent is None:
        told.append(f"adapters cost {ASSUMED_PENALTY_PERCENT} % of that (--penalty)")
    blind = [each for each in case.adapters if not terms.known.get(each.meta.uid, LoraAdapterStatus()).rank]
    unnamed = sum(_name(each) not in terms.ranks.named for each in blind)
    if unnamed:
        told.append(
            f"rank {terms.ranks.otherwise} for {unnamed} adapters that no cluster has verified (--rank, --ranks)"
        )
    profile = case.profile
    rates = (profile.source_rate, profile.disk_rate, profile.host_rate)
    source, disk, host = (f"{each / 1e9:g} GB/s" for each in rates)
    told.append(
        f"a replica starts within {profile.start_seconds:g} s; adapters come at {source} from their source, {disk} "
        f"from disk, {host} from host memory"
    )
    return told
