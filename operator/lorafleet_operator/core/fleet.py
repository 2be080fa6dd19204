"""Which sets of replicas a pool should have, how large, and which adapter belongs where. Called once a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from lorafleet_contracts.durations import parse_seconds
from lorafleet_contracts.names import SHARED_SET, class_set
from lorafleet_contracts.resources.pool import LoraPoolSpec, RankClassesStatus, Replicas
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.capability import Capacity, capacity_of
from lorafleet_operator.core.classes import Classes, decide_classes, work_of
from lorafleet_operator.core.dedication import Promoted
from lorafleet_operator.core.ownsets import OwnSets, decide_own_sets, held_replicas
from lorafleet_operator.core.ranks import class_of, set_size
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.setsize import SetQuestion, size_set
from lorafleet_operator.core.sizing import Bounds, Sizing
from lorafleet_operator.core.snapshot import PoolSnapshot
from lorafleet_operator.core.view import View


@dataclass(frozen=True, slots=True)
class Fleet:
    """The sets that should be there, the shared one first; `sizes` of those that follow their load by name.

    `aims` maps an adapter's uid to the set where it belongs unless that is the shared one; `own` and `classes` are the
    verdicts on tenants' own sets and on the rank classes.
    """

    sets: tuple[EngineSet, ...]
    sizes: Mapping[str, Sizing] = field(default_factory=dict)
    aims: Mapping[str, str] = field(default_factory=dict)
    own: OwnSets = field(default_factory=OwnSets)
    classes: RankClassesStatus | None = None

    @property
    def due(self) -> float | None:
        """When to look again even if nothing happens."""
        moments = [self.own.due, *(each.due for each in self.sizes.values())]
        return min((each for each in moments if each is not None), default=None)

    @property
    def promotions(self) -> Mapping[str, Promoted]:
        """The verdicts on tenants by uid."""
        return self.own.verdicts

    def aim(self, case: Case) -> str:
        """The set where an adapter belongs."""
        return self.aims.get(case.adapter.meta.uid, SHARED_SET)


def decide_fleet(snapshot: PoolSnapshot, spec: LoraPoolSpec, cases: Sequence[Case], view: View) -> Fleet:
    """The sets for this moment: from the spec, and from the load where the spec leaves room for it."""
    capacity = capacity_of(snapshot.capacity, snapshot.pool.status)
    held = held_replicas(snapshot)
    classes = decide_classes(snapshot, spec, (cases, view), capacity, held)
    split = sum(each.replicas for each in classes.sets)
    shared, sizing = _shared_set(snapshot, spec, cases, held + split, view.now)
    frees = partial(_frees, snapshot, spec, capacity, shared.replicas)
    own = decide_own_sets(snapshot, spec, (cases, view.now), capacity, (shared.replicas + split, frees))
    return Fleet(
        sets=(shared, *classes.sets, *own.sets),
        sizes={SHARED_SET: sizing} if sizing else {},
        aims=_aims(cases, spec, classes, view),
        own=own,
        classes=classes.status,
    )


def fixed_size(replicas: Replicas) -> int:
    """How many replicas a shared set has that does not follow its load."""
    if replicas.mode == "Managed":
        return replicas.min
    wanted = max(replicas.desired, replicas.min)
    return wanted if replicas.max is None else min(wanted, replicas.max)


def fixed_words(replicas: Replicas) -> str:
    """Why it has so many."""
    if replicas.mode == "Managed":
        return f"replicas.min {replicas.min}, and no larger replicas.max"
    most = "no replicas.max" if replicas.max is None else f"replicas.max {replicas.max}"
    return f"replicas.desired {replicas.desired} (mode External), with replicas.min {replicas.min} and {most}"


def _shared_set(
    snapshot: PoolSnapshot, spec: LoraPoolSpec, cases: Sequence[Case], others: int, now: float
) -> tuple[EngineSet, Sizing | None]:
    """The shared set; what the `others` replicas of the pool's limit leave it, it may grow to."""
    replicas = spec.replicas
    if replicas.mode == "External" or replicas.max is None or replicas.max <= replicas.min:
        return EngineSet(SHARED_SET, "Shared", fixed_size(replicas), why=fixed_words(replicas)), None
    most, window = max(replicas.max - others, replicas.min), parse_seconds(replicas.scale_down_after)
    bounds = Bounds(replicas.min, most, replicas.redundancy, window)
    theirs = [each for each in cases if each.dedicated is None]
    sizing = size_set(SetQuestion(SHARED_SET, bounds, theirs), snapshot, now)
    return EngineSet(SHARED_SET, "Shared", sizing.replicas, why=sizing.reason), sizing


def _aims(cases: Sequence[Case], spec: LoraPoolSpec, classes: Classes, view: View) -> dict[str, str]:
    """The sets of adapters that do not belong on the shared one. A class's set counts while a replica of it serves."""
    split = classes.status.split if classes.status else []
    serving = {replica.set for replica in view.usable.values()}
    ready = {each for each in split if class_set(each) in serving}
    aims = {}
    for case in cases:
        facts = case.verification.facts
        ceiling = class_of(facts.rank, spec.rank_classes.ceilings) if facts else None
        if case.dedicated is not None:
            aims[case.adapter.meta.uid] = case.dedicated
        elif ceiling is not None and ceiling in ready:
            aims[case.adapter.meta.uid] = class_set(ceiling)
        elif facts is None and case.home in serving:
            aims[case.adapter.meta.uid] = case.home
    return aims


def _frees(snapshot: PoolSnapshot, spec: LoraPoolSpec, capacity: Capacity, shared: int, load: float) -> int:
    """How many replicas the shared set could do without if so many plain replicas' worth of load left it."""
    work = work_of(snapshot.load.total, capacity.effective_requests_per_s, capacity.effective_tokens_per_s)
    less = load * capacity.requests_per_s / capacity.effective_requests_per_s
    return max(shared - set_size(max(work - less, 0.0), spec.replicas.redundancy, spec.replicas.min), 0)
