"""From cases and engines' figures to the split of a pool's rank classes. Called by fleet.py; ranks.py decides."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lorafleet_contracts.admin import StepsState
from lorafleet_contracts.durations import parse_seconds
from lorafleet_contracts.forecast import Member, StepModel, model_of
from lorafleet_contracts.names import class_set, is_dedicated, version_key
from lorafleet_contracts.resources.pool import LoraPoolSpec, RankClassesStatus
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.capability import Capacity
from lorafleet_operator.core.popularity import Rates
from lorafleet_operator.core.ranks import RankCase, class_of, decide_split
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.snapshot import HOLDING, PoolSnapshot
from lorafleet_operator.core.stepcost import add_steps, fit_steps
from lorafleet_operator.core.view import View

LEAST_STEPS = 50
"""Decode steps below which their mean says nothing."""


@dataclass(frozen=True, slots=True)
class Classes:
    """The verdict on a pool's classes (None: it has none), and the sets that they have."""

    status: RankClassesStatus | None = None
    sets: tuple[EngineSet, ...] = ()


def decide_classes(
    snapshot: PoolSnapshot, spec: LoraPoolSpec, seen: tuple[Sequence[Case], View], capacity: Capacity, others: int
) -> Classes:
    """Which classes have sets of their own. `others` are the replicas that tenants' own sets hold."""
    cases, view = seen
    ceilings = tuple(sorted(spec.rank_classes.ceilings))
    if not ceilings:
        return Classes(sets=_lingering(snapshot, cases, frozenset()))
    members, work = _count(snapshot, ceilings, seen, capacity)
    bounds = spec.replicas
    status = decide_split(
        RankCase(
            ceilings=ceilings,
            auto=spec.rank_classes.split == "Auto",
            members=members,
            work=work,
            model=step_model(snapshot, cases),
            bound_seconds=parse_seconds(spec.slo.itl),
            most=limit_of(spec),
            shared_min=bounds.min,
            redundancy=bounds.redundancy,
            others=others,
            split_after=parse_seconds(spec.rank_classes.split_after),
            merge_after=parse_seconds(spec.rank_classes.merge_after),
            status=snapshot.pool.status.rank_classes,
        ),
        view.now,
    )
    split = frozenset(status.split if status else ())
    why = status.message if status else ""
    sets = tuple(
        EngineSet(class_set(each), "RankClass", _size(snapshot, each, work, bounds.redundancy), ceiling=each, why=why)
        for each in sorted(split)
    )
    return Classes(status, (*sets, *_lingering(snapshot, cases, split)))


def limit_of(spec: LoraPoolSpec) -> int:
    """How many replicas a pool may have, all sets together."""
    replicas = spec.replicas
    if replicas.max is not None:
        return replicas.max
    return replicas.min if replicas.mode == "Managed" else 1000


def work_of(rates: Rates | None, requests_per_s: float, tokens_per_s: float | None) -> float:
    """A load in replicas that do so much, by requests or by tokens, whichever is more."""
    if rates is None:
        return 0.0
    by_requests = rates.requests_per_s.fast / requests_per_s
    return max(by_requests, rates.tokens_per_s.fast / tokens_per_s if tokens_per_s else 0.0)


def _count(
    snapshot: PoolSnapshot, ceilings: tuple[int, ...], seen: tuple[Sequence[Case], View], capacity: Capacity
) -> tuple[Mapping[int, Sequence[Member]], Mapping[int, float]]:
    """The members and the work of each class, by ceiling."""
    cases, view = seen
    answers = _answer_shares(snapshot)
    members: dict[int, list[Member]] = defaultdict(list)
    work: dict[int, float] = defaultdict(float)
    for case in cases:
        facts, uid = case.verification.facts, case.adapter.meta.uid
        ceiling = class_of(facts.rank, ceilings) if facts and case.target else None
        if facts is None or ceiling is None or case.dedicated is not None:
            continue
        rates = snapshot.load.adapters.get(uid, Rates())
        copies = len(view.holders.get(version_key(uid, facts.digest), ()))
        members[ceiling].append(Member(facts.rank, rates.tokens_per_s.fast * answers.get(uid, 1.0), max(copies, 1)))
        work[ceiling] += work_of(rates, capacity.effective_requests_per_s, capacity.effective_tokens_per_s)
    return members, work


def _answer_shares(snapshot: PoolSnapshot) -> dict[str, float]:
    """Of the tokens counted for each adapter (by uid) the share that was generated, not read."""
    read: dict[str, int] = defaultdict(int)
    generated: dict[str, int] = defaultdict(int)
    for replica in snapshot.replicas:
        for row in replica.state.usage if replica.state else ():
            uid = row.adapter.partition("@")[0]
            read[uid] += row.prompt_tokens
            generated[uid] += row.completion_tokens
    return {uid: generated[uid] / max(read[uid] + generated[uid], 1) for uid in generated}


def step_model(snapshot: PoolSnapshot, cases: Sequence[Case]) -> StepModel | None:
    """What a decode step takes by the engines' own count; None before there were enough of them.

    Where ranks varied too little to tell their price, it is the bytes of a rank at the pace of the base's weights.
    """
    states = [each.state for each in snapshot.replicas if each.usable and not is_dedicated(each.set) and each.state]
    sums = add_steps([StepsState(), *(each.steps for each in states if each.steps is not None)])
    if sums.decode_steps < LEAST_STEPS:
        return None
    cost = fit_steps(sums)
    mean, ranks = sums.decode_seconds / sums.decode_steps, sums.rank_sum / sums.decode_steps
    if cost is not None:
        return StepModel(max(mean - cost.per_rank * ranks, 0.0), cost.per_rank)
    facts = [each.verification.facts for each in cases if each.verification.facts]
    bytes_per_rank = sum(each.bytes for each in facts) / max(sum(each.rank for each in facts), 1)
    weights = max((each.memory.weights for each in states if each.memory), default=0)
    return model_of(mean, ranks, bytes_per_rank, weights)


def _size(snapshot: PoolSnapshot, ceiling: int, work: Mapping[int, float], redundancy: int) -> int:
    """A class set grows at once and shrinks when a fifth less than what is there would do."""
    present = snapshot.workloads.get(class_set(ceiling))
    wanted = max(math.ceil(work[ceiling] - 1e-9), 1) + redundancy
    if present is None or wanted >= present.replicas:
        return wanted
    return min(max(math.ceil(work[ceiling] / 0.8), 1) + redundancy, present.replicas)


def _lingering(snapshot: PoolSnapshot, cases: Sequence[Case], split: frozenset[int]) -> tuple[EngineSet, ...]:
    """Class sets that are not wanted any more, but that adapters are still on: they end when these have moved."""
    homes = {case.home for case in cases if case.serving is not None}
    kept = []
    for name, workload in sorted(snapshot.workloads.items()):
        head, _, ceiling = name.partition("-")
        if head != "class" or not ceiling.isdecimal() or int(ceiling) in split:
            continue
        holding = any(
            version.phase in HOLDING
            for replica in snapshot.replicas
            if replica.set == name and replica.usable and replica.state
            for version in replica.state.versions
        )
        if name in homes or holding:
            why = "no longer split off; its adapters are moving"
            kept.append(EngineSet(name, "RankClass", workload.replicas, ceiling=int(ceiling), why=why))
    return tuple(kept)
