"""Lays every set of replicas out by itself: an adapter in the set where it belongs, in the one where it still is, and
in those of tenants that have their own. Called by the planning; residency.py does one set.

A version that moves from one set to another is in both until a verdict has moved the routing, like one version and the
next within a set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lorafleet_contracts.names import is_dedicated
from lorafleet_operator.core.actions import Action
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.fleet import Fleet
from lorafleet_operator.core.residency import Layout, lay_out
from lorafleet_operator.core.snapshot import VersionOn
from lorafleet_operator.core.view import View
from lorafleet_operator.core.wishes import Rules


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts of all sets by name, and what follows from them together."""

    by_set: Mapping[str, Layout]
    actions: tuple[Action, ...]
    surplus: tuple[VersionOn, ...]
    due: float | None
    moves: int


def lay_out_sets(cases: Sequence[Case], view: View, fleet: Fleet, rules: Rules) -> Layouts:
    """Lay out the sets that take versions: merged ones have theirs in the weights."""
    layouts: dict[str, Layout] = {}
    for name in sorted(each.name for each in fleet.sets if each.merged is None):
        moved = any(each.moves for each in layouts.values())
        limits = replace(rules, moves_per_hour=0) if moved else rules
        layouts[name] = lay_out([_part(case, name, fleet) for case in cases], view.of(name), limits)
    moments = [each.due for each in layouts.values() if each.due is not None]
    return Layouts(
        layouts,
        tuple(action for each in layouts.values() for action in each.actions),
        tuple(version for each in layouts.values() for version in each.surplus),
        min(moments, default=None),
        sum(each.moves for each in layouts.values()),
    )


def _part(case: Case, name: str, fleet: Fleet) -> Case:
    """What of an adapter concerns one set."""
    uid, home, aim = case.adapter.meta.uid, case.home, fleet.aim(case)
    if is_dedicated(name):
        mine = uid in fleet.own.private.get(name, frozenset())
        return replace(case, everywhere=True) if mine else replace(case, coming=False, standing=False)
    if name == home == aim:
        return case
    return replace(case, coming=name == aim, standing=name == home)
