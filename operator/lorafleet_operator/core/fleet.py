"""Which sets of replicas a pool should have, and how large. Called by the planning once a plan; places no adapter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lorafleet_contracts.names import SHARED_SET
from lorafleet_contracts.resources.pool import LoraPoolSpec, Replicas
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.setsize import SetQuestion, size_set
from lorafleet_operator.core.sizing import Bounds, Sizing
from lorafleet_operator.core.snapshot import PoolSnapshot
from lorafleet_operator.core.view import View


@dataclass(frozen=True, slots=True)
class Fleet:
    """The sets that should be there, the shared one first; `sizes` of those that follow their load by name, and the
    epoch second from which one of them may be smaller."""

    sets: tuple[EngineSet, ...]
    sizes: Mapping[str, Sizing] = field(default_factory=dict)

    @property
    def due(self) -> float | None:
        """When to look again even if nothing happens."""
        return min((each.due for each in self.sizes.values() if each.due is not None), default=None)


def decide_fleet(snapshot: PoolSnapshot, spec: LoraPoolSpec, cases: Sequence[Case], view: View) -> Fleet:
    """The sets for this moment: from the spec, and from the load where the spec leaves room for it."""
    replicas = spec.replicas
    if replicas.mode == "External" or replicas.max is None or replicas.max <= replicas.min:
        shared = EngineSet(SHARED_SET, "Shared", fixed_size(replicas), why=fixed_words(replicas))
        return Fleet((shared,))
    bounds = Bounds(replicas.min, replicas.max, replicas.redundancy)
    sizing = size_set(SetQuestion(SHARED_SET, bounds, cases), snapshot, view.now)
    return Fleet((EngineSet(SHARED_SET, "Shared", sizing.replicas, why=sizing.reason),), {SHARED_SET: sizing})


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
