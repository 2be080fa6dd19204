"""A set's case for sizing.py, from what a snapshot shows of its replicas. Called by fleet.py."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.capability import capacity_of
from lorafleet_operator.core.popularity import Pace, Rates
from lorafleet_operator.core.sizing import Bounds, Sizing, SizingCase, size
from lorafleet_operator.core.snapshot import PoolSnapshot, Replica


@dataclass(frozen=True, slots=True)
class SetQuestion:
    """How large set `name` should be within its owner's `bounds`, `cases` being at home there."""

    name: str
    bounds: Bounds
    cases: Sequence[Case]


def size_set(question: SetQuestion, snapshot: PoolSnapshot, now: float) -> Sizing:
    """The size of one set, from the load of its own replicas."""
    mine = [each for each in snapshot.replicas if each.set == question.name]
    workload = snapshot.workloads.get(question.name)
    case = SizingCase(
        load=_add(snapshot.load.replicas.get(each.name, Rates()) for each in mine),
        waiting=sum(each.state.queue for each in mine if each.state is not None and each.usable),
        capacity=capacity_of(snapshot.capacity, snapshot.pool.status),
        bounds=question.bounds,
        present=None if workload is None else workload.replicas,
        resident=_residents(question, mine, snapshot),
        needs=snapshot.needs.get(question.name),
        now=now,
    )
    return size(case)


def _add(rates: Iterable[Rates]) -> Rates:
    each = list(rates)
    requests, tokens = (
        math.fsum(getattr(rate, name).fast for rate in each) for name in ("requests_per_s", "tokens_per_s")
    )
    return Rates(Pace(fast=requests), Pace(fast=tokens))


def _residents(question: SetQuestion, replicas: Sequence[Replica], snapshot: PoolSnapshot) -> int:
    """The fewest replicas whose budgets hold all that is pinned or asked for, each as often as it should be there."""
    budgets = [each.state.memory.adapters for each in replicas if each.usable and each.state and each.state.memory]
    needed, copies = 0, 0
    for case in question.cases:
        facts, spec, uid = case.verification.facts, case.adapter.spec, case.adapter.meta.uid
        if facts is None or spec is None or case.target is None:
            continue
        if not spec.pinned and uid not in snapshot.load.adapters:
            continue
        wanted = max(spec.min_replicas, 1 + question.bounds.redundancy if spec.pinned else 1)
        needed, copies = needed + facts.bytes * wanted, max(copies, wanted)
    least = min(budgets, default=0)
    return max(math.ceil(needed / least) if least > 0 else 0, copies)
