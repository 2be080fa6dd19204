"""From cases to places: which version belongs on which replica, and the loads and unloads that lead there.

Called by the planning. Wishes come from wishes.py, places from placement.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lorafleet_contracts.admin import VersionPhase, VersionState
from lorafleet_operator.core.actions import Action, Load, Unload
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.placement import place
from lorafleet_operator.core.places import Choice, Placed
from lorafleet_operator.core.problems import retry_at
from lorafleet_operator.core.snapshot import HOLDING, Attempt, VersionOn
from lorafleet_operator.core.view import SETTLE_SECONDS, View
from lorafleet_operator.core.wishes import Rules, Wish, bins_of, item_of, wishes_of

GRACE_SECONDS = 5.0
"""How long a version stays after it was of no use any more, so that all gateways have the verdict that moved them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where versions go (by `{uid}@{digest}`), what to do about it, what nobody needs, and the next moment of note.

    `moves` of the places are new though the version serves elsewhere.
    """

    placed: Mapping[str, Placed]
    actions: tuple[Action, ...]
    surplus: tuple[VersionOn, ...]
    due: float | None
    moves: int


def lay_out(cases: Sequence[Case], view: View, rules: Rules) -> Layout:
    """Place all versions of one set of replicas, which is all that `view` shows, and derive the calls due now."""
    wishes = [wish for case in cases for wish in wishes_of(case, view)]
    placement = place([item_of(wish, view, rules) for wish in wishes], bins_of(view, wishes, rules), rules.policy(view))
    placed = placement.placed
    loads, load_due = _loads(wishes, placed, view)
    surplus = _surplus(placed, view)
    unloads, unload_due = _unloads(cases, surplus, view)
    moments = [moment for moment in (load_due, unload_due) if moment is not None]
    return Layout(placed, (*loads, *unloads), tuple(surplus), min(moments, default=None), placement.moves)


def _loads(wishes: Sequence[Wish], placed: Mapping[str, Placed], view: View) -> tuple[list[Load], float | None]:
    loads: list[Load] = []
    moments: list[float] = []
    for wish in wishes:
        meta, spec = wish.case.adapter.meta, wish.case.adapter.spec
        if spec is None or wish.fixed:
            continue
        for choice in placed[wish.key].choices:
            target = view.target(choice.replica, meta.uid, wish.digest)
            moment = _next_call(view.memory.loads.get(target))
            held = view.versions[choice.replica].get(wish.key)
            if moment is None or (held is not None and held.phase in HOLDING and _is_seated(held, choice)):
                continue
            if moment <= view.now:
                loads.append(Load(target, wish.case.fetch, meta.namespace, meta.name, choice))
            else:
                moments.append(moment)
    return loads, min(moments, default=None)


def _is_seated(held: VersionState, choice: Choice) -> bool:
    return held.wanted is choice.tier and held.pinned == choice.pinned


def _surplus(placed: Mapping[str, Placed], view: View) -> dict[VersionOn, VersionState]:
    """What no wish needs: no copy of a version goes while one that should be there does not answer yet.

    From a replica that leaves not even a version goes that has no other place.
    """
    wanted = {(choice.replica, key) for key, where in placed.items() for choice in where.choices}
    expected = {
        key
        for key, where in placed.items()
        if any(choice.replica not in view.resident.get(key, ()) for choice in where.choices)
    }
    unsettled = {key for key in expected if len(view.holders.get(key, ())) > len(placed[key].choices)}
    homeless = expected | {key for key, where in placed.items() if not where.choices}
    return {
        view.target(name, version.uid, version.digest): version
        for name, versions in view.versions.items()
        for key, version in versions.items()
        if (name, key) not in wanted
        and key not in (homeless if name in view.leaving else unsettled)
        and version.phase != VersionPhase.DRAINING
    }


def _unloads(
    cases: Sequence[Case], surplus: Mapping[VersionOn, VersionState], view: View
) -> tuple[list[Unload], float | None]:
    known = {case.adapter.meta.uid for case in cases}
    unloads: list[Unload] = []
    moments: list[float] = []
    for target, version in surplus.items():
        moment = _next_call(view.memory.unloads.get(target))
        if moment is None or _is_pending(view.memory.loads.get(target)):
            continue
        if version.uid in known and version.phase != VersionPhase.FAILED:
            moment = max(moment, view.memory.surplus.get(target, view.now) + GRACE_SECONDS)
        if moment <= view.now:
            unloads.append(Unload(target))
        else:
            moments.append(moment)
    return unloads, min(moments, default=None)


def _is_pending(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.pending


def _next_call(attempt: Attempt | None) -> float | None:
    """When a call may be made (again): 0 = at once, None = one is running."""
    if attempt is None:
        return 0.0
    if attempt.pending:
        return None
    return retry_at(attempt) if attempt.problem else attempt.at + SETTLE_SECONDS
