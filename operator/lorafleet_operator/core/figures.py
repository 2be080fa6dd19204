"""What is shown of a pool beside its engines' own metrics: what it aims at, and how its objects stand.

Called by shell/pool_metrics.py when somebody scrapes; decides nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lorafleet_contracts.conditions import Condition, ConditionType, find_condition
from lorafleet_contracts.durations import parse_seconds
from lorafleet_operator.core.actions import Kind
from lorafleet_operator.core.snapshot import PoolSnapshot

UNSEEN = "Unseen"
"""The reason shown of objects without a verdict."""


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """`pool` is namespace/name; `objectives` are seconds by name; `objects` count by kind and reason of Ready."""

    pool: str
    objectives: Mapping[str, float]
    wanted: int
    ready: int
    objects: Mapping[tuple[Kind, str], int]


def count_pool(snapshot: PoolSnapshot) -> PoolFigures:
    """The figures of one pool as it was observed last."""
    pool, spec = snapshot.pool, snapshot.pool.spec
    objects: Counter[tuple[Kind, str]] = Counter()
    objects["LoraPool", _reason(pool.status.conditions)] += 1
    objects.update(("LoraAdapter", _reason(each.status.conditions)) for each in snapshot.adapters)
    objects.update(("Tenant", _reason(each.status.conditions)) for each in snapshot.tenants)
    aims = {"itl": spec.slo.itl, "ttft": spec.slo.ttft, "coldLoad": spec.slo.cold_load} if spec else {}
    return PoolFigures(
        pool=f"{pool.meta.namespace}/{pool.meta.name}",
        objectives={name: parse_seconds(aim) for name, aim in aims.items()},
        wanted=sum(each.desired for each in pool.status.sets),
        ready=sum(each.ready for each in pool.status.sets),
        objects=objects,
    )


def _reason(conditions: Iterable[Condition]) -> str:
    found = find_condition(conditions, ConditionType.READY)
    return found.reason if found else UNSEEN
