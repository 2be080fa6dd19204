"""From cases to places: which version belongs on which replica, and the loads and unloads that lead there.

Called by the planning. Chooses through placement.py; takes the engines' state as the truth about their memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lorafleet_contracts.admin import VersionPhase, VersionState
from lorafleet_contracts.names import version_key
from lorafleet_operator.core.actions import Action, Load, Unload
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.placement import STAYS, Bin, Item, Placed, place
from lorafleet_operator.core.problems import retry_at
from lorafleet_operator.core.snapshot import HOLDING, Attempt, VersionOn
from lorafleet_operator.core.view import SETTLE_SECONDS, View

GRACE_SECONDS = 5.0
"""How long a version stays after it was of no use any more, so that all gateways have the verdict that moved them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where versions go (by `{uid}@{digest}`), what to do about it, what nobody needs, and the next moment of note."""

    placed: Mapping[str, Placed]
    actions: tuple[Action, ...]
    surplus: tuple[VersionOn, ...]
    due: float | None


@dataclass(frozen=True, slots=True)
class _Wish:
    """A version (`key`) that should be somewhere; `fixed` ones only stay where they are."""

    case: Case
    key: str
    digest: str
    bytes: int
    count: int
    fixed: bool


def lay_out(cases: Sequence[Case], view: View) -> Layout:
    """Place all versions and derive the calls that are due now."""
    wishes = [wish for case in cases for wish in _wishes(case, view)]
    placed = place([_item(wish, view) for wish in wishes], _bins(view, wishes))
    loads, load_due = _loads(wishes, placed, view)
    surplus = _surplus(placed, view)
    unloads, unload_due = _unloads(cases, surplus, view)
    moments = [moment for moment in (load_due, unload_due) if moment is not None]
    return Layout(placed, (*loads, *unloads), tuple(surplus), min(moments, default=None))


def _wishes(case: Case, view: View) -> list[_Wish]:
    uid, wishes = case.adapter.meta.uid, []
    if case.target is not None and case.verification.facts is not None and case.adapter.spec is not None:
        count = min(case.adapter.spec.min_replicas, len(view.usable))
        key = version_key(uid, case.target)
        wishes.append(_Wish(case, key, case.target, case.verification.facts.bytes, count, fixed=False))
    if case.serving is not None and case.serving != case.target:
        # Until a verdict moves the routing, what serves stays; where it was lost, its files may still be cached.
        key, fixed = version_key(uid, case.serving), case.suspended or case.revoked
        count = max(len(view.holders.get(key, ())), 0 if fixed else 1)
        wishes.append(_Wish(case, key, case.serving, case.adapter.status.bytes or 0, count, fixed))
    return wishes


def _item(wish: _Wish, view: View) -> Item:
    meta, holders = wish.case.adapter.meta, frozenset(view.holders.get(wish.key, ()))
    recorded = {each.replica: each.reason for each in wish.case.adapter.status.placements if each.digest == wish.digest}
    reasons = {name: recorded.get(name) or view.reasons.get((name, wish.key)) or STAYS for name in holders}
    return Item(
        key=wish.key,
        age=meta.created,
        bytes=wish.bytes,
        count=wish.count,
        holders=holders,
        avoid=view.silent | view.failed.get(wish.key, frozenset()),
        reasons=reasons,
        near=view.inspected.get(wish.case.inspection, ""),
    )


def _bins(view: View, wishes: Sequence[_Wish]) -> list[Bin]:
    sizes = {wish.key: wish.bytes for wish in wishes}
    held = {
        name: {
            key: max(version.bytes, sizes.get(key, 0))
            for key, version in versions.items()
            if version.phase != VersionPhase.FAILED
        }
        for name, versions in view.versions.items()
    }
    for key, names in view.holders.items():
        for name in names:
            held[name].setdefault(key, sizes.get(key, 0))
    return [
        Bin(name, memory.adapters, max(sum(held[name].values()), memory.adapters_used))
        for name, replica in view.usable.items()
        if replica.state and (memory := replica.state.memory)
    ]


def _loads(wishes: Sequence[_Wish], placed: Mapping[str, Placed], view: View) -> tuple[list[Load], float | None]:
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
            if moment is None or (held is not None and held.phase in HOLDING):
                continue
            if moment <= view.now:
                loads.append(Load(target, spec.source.uri, meta.namespace, meta.name, choice.reason))
            else:
                moments.append(moment)
    return loads, min(moments, default=None)


def _surplus(placed: Mapping[str, Placed], view: View) -> dict[VersionOn, VersionState]:
    wanted = {(choice.replica, key) for key, where in placed.items() for choice in where.choices}
    return {
        view.target(name, version.uid, version.digest): version
        for name, versions in view.versions.items()
        for key, version in versions.items()
        if (name, key) not in wanted and version.phase != VersionPhase.DRAINING
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
