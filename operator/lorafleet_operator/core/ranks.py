"""Rank classes: which class holds an adapter, and which classes get replicas of their own. Called by fleet.py and the
verification; pure arithmetic.

The engine stores true ranks, so a class saves no memory. It buys latency: a decode step takes the base's time and some
more for each unit of rank of the distinct adapters in it, so tenants of small ranks wait for large neighbours.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.forecast import Forecast, Member, StepModel, forecast
from lorafleet_contracts.resources.pool import LoraPoolSpec, RankClassesStatus
from lorafleet_operator.core.conditions import Refusal, parse_timestamp, timestamp

MERGE_MARGIN = 0.8
"""A class that was split off comes back only when its ranks would take less than so much of what the bound leaves them
above the base's own time."""
QUIET_SECONDS = 60.0
"""A reason alone is written no oftener than this."""


@dataclass(frozen=True, slots=True)
class RankCase:
    """All that the split of a pool is decided from.

    `members` by ceiling of their class; `work` by ceiling in replicas' worth of load (0.5: half a replica);
    `shared_min` is the least size of the shared set, `others` the replicas of tenants' own sets, `most` the pool's
    limit. `model` is None until steps have been seen.
    """

    ceilings: tuple[int, ...]
    auto: bool
    members: Mapping[int, Sequence[Member]]
    work: Mapping[int, float]
    model: StepModel | None
    bound_seconds: float
    most: int
    shared_min: int = 1
    redundancy: int = 0
    others: int = 0
    split_after: float = 300.0
    merge_after: float = 1800.0
    status: RankClassesStatus | None = None


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to cut: `split` ceilings have sets of their own, all else is on the shared set."""

    split: tuple[int, ...]
    forecast: Forecast
    replicas: int


@dataclass(frozen=True, slots=True)
class _Finding:
    wanted: tuple[int, ...]
    reason: str
    message: str


def class_of(rank: int, ceilings: Sequence[int]) -> int | None:
    """The smallest ceiling that holds a rank; None when none does."""
    return min((each for each in ceilings if each >= rank), default=None)


def is_above(rank: int, ceilings: Sequence[int]) -> bool:
    """Whether no class of a pool that has classes holds a rank."""
    return bool(ceilings) and class_of(rank, ceilings) is None


def refuse_rank(rank: int, spec: LoraPoolSpec) -> Refusal:
    """The verdict on an adapter above all classes: those there are, the one it would need, and what goes without."""
    classes = ", ".join(str(each) for each in sorted(spec.rank_classes.ceilings))
    gpus = spec.engine.tensor_parallel
    cost = f"{gpus} GPUs" if gpus > 1 else "1 GPU"
    return Refusal(
        Reason.RANK_ABOVE_CEILING,
        f"the adapter's rank is {rank}, the pool's classes hold ranks up to {classes}: it would need a class of {rank} "
        f"or more. Its owner can add one to rankClasses.ceilings; train a smaller rank; or set isolation: Dedicated on "
        f"the tenant that calls it, which costs {cost} and is bounded by promotion.maxDedicated",
    )


def set_size(work: float, redundancy: int, least: int = 1) -> int:
    """Replicas for so much work, with `redundancy` of them lost."""
    return max(math.ceil(work - 1e-9), 1, least - redundancy) + redundancy


def decide_split(case: RankCase, now: float) -> RankClassesStatus | None:
    """Which classes have sets of their own from `now` on, with the numbers; None where the pool has no classes.

    The status that stands comes back unchanged while it says what is decided, whatever the numbers do meanwhile.
    """
    if not case.ceilings:
        return None
    known, standing = case.status, tuple(case.status.split) if case.status else ()
    split = tuple(sorted(set(standing) & set(case.ceilings)))
    found = _find(case, split)
    if known is None or split != standing:  # new, or the spec no longer has a class that was split off
        return _status(split, found, now)
    age = now - parse_timestamp(known.since)
    if found.wanted == split:
        quiet = tuple(known.wanted) == split and (known.reason == found.reason or age < QUIET_SECONDS)
        return known if quiet else _status(split, found, now)
    if case.auto and tuple(known.wanted) != found.wanted:
        return _status(split, found, now)
    patience = case.split_after if set(found.wanted) - set(split) else case.merge_after
    return _status(found.wanted, found, now) if age >= patience or not case.auto else known


def _status(split: tuple[int, ...], found: _Finding, since: float) -> RankClassesStatus:
    return RankClassesStatus(
        split=list(split),
        wanted=list(found.wanted),
        reason=found.reason,
        message=found.message,
        since=timestamp(since),
    )


def _find(case: RankCase, split: tuple[int, ...]) -> _Finding:
    """What the forecast asks for, given what is split now."""
    if not case.auto:
        return _Finding((), "Never", "rankClasses.split is Never: all classes share one set of replicas")
    if case.model is None:
        return _Finding(split, "NotMeasured", "no decode steps have been seen yet")
    options = _options(case, case.model)
    bound = case.bound_seconds
    base = case.model.base_seconds
    lower = base + MERGE_MARGIN * (bound - base)
    fine = next(
        (each for each in options if each.forecast.itl_p99 <= (bound if set(each.split) >= set(split) else lower)), None
    )
    standing = next((each for each in options if each.split == split), options[0])
    if fine is None:
        alone = options[-1].forecast.itl_p99
        told = (
            f"{_numbers(options[0], case)}. By itself the lowest class would be at {_ms(alone)}: a split would not help"
        )
        return _Finding(standing.split, "WouldNotHelp", told)
    if fine.replicas > case.most and len(fine.split) > len(standing.split):
        told = (
            f"{_numbers(options[0], case)}; {_sets(fine.split)} would bring it to {_ms(fine.forecast.itl_p99)}, but "
            f"takes {fine.replicas} replicas in all, of which replicas.max allows {case.most}"
        )
        return _Finding(standing.split, "NoRoom", told)
    if not fine.split:
        return _Finding((), "WithinBound", _numbers(fine, case))
    extra = fine.replicas - options[0].replicas
    told = (
        f"{_numbers(options[0], case)}; {_sets(fine.split)} brings it to {_ms(fine.forecast.itl_p99)} for {extra:+d} "
        f"replicas: {fine.replicas} of at most {case.most}"
    )
    return _Finding(fine.split, "SplitPays", told)


def _options(case: RankCase, model: StepModel) -> list[_Option]:
    """All cuts, the uncut pool first; only classes that have adapters are worth a set."""
    levels = [each for each in sorted(case.ceilings) if case.members.get(each)]
    options = []
    for cut in range(len(levels), 0, -1):
        options.append(_cut(case, model, tuple(levels[:cut]), tuple(levels[cut:])))
    return options or [_cut(case, model, (), ())]


def _cut(case: RankCase, model: StepModel, below: tuple[int, ...], split: tuple[int, ...]) -> _Option:
    shared = set_size(sum(case.work.get(each, 0.0) for each in below), case.redundancy, case.shared_min)
    own = sum(set_size(case.work.get(each, 0.0), case.redundancy) for each in split)
    members = [member for each in below for member in case.members[each]]
    return _Option(split, forecast(members, shared, model), shared + own + case.others)


def _numbers(option: _Option, case: RankCase) -> str:
    return (
        f"on one set the forecast is {_ms(option.forecast.itl_p99)} between tokens (p99) at a mean rank sum of "
        f"{option.forecast.rank_sum:.0f} a step; slo.itl is {_ms(case.bound_seconds)}"
    )


def _sets(split: Sequence[int]) -> str:
    names = ", ".join(str(each) for each in split)
    return f"a set for class {names}" if len(split) == 1 else f"sets for classes {names}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
