"""From cases to places: which version belongs on which replica, and the loads and unloads that lead there.

Called by the planning. Chooses through placement.py; takes the engines' state as the truth about their memory.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lorafleet_contracts.admin import VersionPhase, VersionState
from lorafleet_contracts.conditions import ConditionType
from lorafleet_contracts.names import version_key
from lorafleet_operator.core.actions import Action, Load, Unload
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.conditions import seconds_since
from lorafleet_operator.core.placement import STAYS, Bin, Item, Placed, place
from lorafleet_operator.core.problems import retry_at
from lorafleet_operator.core.snapshot import HOLDING, Attempt, Memory, PoolSnapshot, Replica, VersionOn

SETTLE_SECONDS = 5.0
"""How long a call's success is believed before the engine's state shows it."""
GRACE_SECONDS = 5.0
"""How long a replaced version stays after the verdict that moved the routing tables, so that all gateways have it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where versions go (by `{uid}@{digest}`), what to do about it, and the next moment that matters."""

    placed: Mapping[str, Placed]
    actions: tuple[Action, ...]
    due: float | None


@dataclass(frozen=True, slots=True)
class _Wish:
    """A version that should be somewhere; `fixed` ones only stay where they are."""

    case: Case
    digest: str
    bytes: int
    count: int
    fixed: bool

    @property
    def key(self) -> str:
        return version_key(self.case.adapter.meta.uid, self.digest)


@dataclass(frozen=True, slots=True)
class _View:
    """The usable replicas, indexed: phases and holders by version key, and who failed to take a version lately."""

    usable: Mapping[str, Replica]
    memory: Memory
    now: float
    phases: Mapping[tuple[str, str], VersionPhase]
    holders: Mapping[str, set[str]]
    failed: Mapping[str, set[str]]
    reasons: Mapping[tuple[str, str], str]

    def target(self, replica: str, uid: str, digest: str) -> VersionOn:
        return load_of(self.usable[replica], uid, digest)


def lay_out(cases: Sequence[Case], snapshot: PoolSnapshot, now: float) -> Layout:
    """Place all versions and derive the calls that are due now."""
    view = _look(snapshot, now)
    wishes = [wish for case in cases for wish in _wishes(case, view)]
    placed = place([_item(wish, view) for wish in wishes], _bins(view, wishes))
    loads, load_due = _loads(wishes, placed, view)
    unloads, unload_due = _unloads(cases, placed, view)
    moments = [moment for moment in (load_due, unload_due) if moment is not None]
    return Layout(placed, (*loads, *unloads), min(moments, default=None))


def load_of(replica: Replica, uid: str, digest: str) -> VersionOn:
    """The name of one version on this life of a usable replica."""
    return VersionOn(replica.name, replica.state.boot_id if replica.state else "", uid, digest)


def _versions(replica: Replica) -> Sequence[VersionState]:
    return replica.state.versions if replica.state else ()


def _look(snapshot: PoolSnapshot, now: float) -> _View:
    usable = {each.name: each for each in snapshot.replicas if each.usable}
    phases: dict[tuple[str, str], VersionPhase] = {}
    holders: dict[str, set[str]] = defaultdict(set)
    failed: dict[str, set[str]] = defaultdict(set)
    reasons: dict[tuple[str, str], str] = {}
    for name, replica in usable.items():
        for version in _versions(replica):
            phases[name, version.key] = version.phase
            if version.phase in HOLDING:
                holders[version.key].add(name)
    for target, attempt in snapshot.memory.loads.items():
        replica_now = usable.get(target.replica)
        if replica_now is None or replica_now.state is None or replica_now.state.boot_id != target.boot_id:
            continue
        reasons[target.replica, target.version] = attempt.reason
        if attempt.pending or (attempt.problem is None and now < attempt.at + SETTLE_SECONDS):
            holders[target.version].add(target.replica)
        elif attempt.problem is not None and retry_at(attempt) > now:
            failed[target.version].add(target.replica)
    return _View(usable, snapshot.memory, now, phases, holders, failed, reasons)


def _wishes(case: Case, view: _View) -> list[_Wish]:
    uid, wishes = case.adapter.meta.uid, []
    if case.target is not None and case.verification.facts is not None and case.adapter.spec is not None:
        count = min(case.adapter.spec.min_replicas, len(view.usable))
        wishes.append(_Wish(case, case.target, case.verification.facts.bytes, count, fixed=False))
    if case.serving is not None and case.serving != case.target:
        # Until a verdict moves the routing, what serves stays; where it was lost, its files may still be cached.
        count = len(view.holders.get(version_key(uid, case.serving), ()))
        fixed = case.suspended or case.revoked
        wishes.append(_Wish(case, case.serving, case.adapter.status.bytes or 0, max(count, 0 if fixed else 1), fixed))
    return wishes


def _item(wish: _Wish, view: _View) -> Item:
    meta, holders = wish.case.adapter.meta, frozenset(view.holders.get(wish.key, ()))
    recorded = {each.replica: each.reason for each in wish.case.adapter.status.placements if each.digest == wish.digest}
    reasons = {name: recorded.get(name) or view.reasons.get((name, wish.key)) or STAYS for name in holders}
    return Item(
        key=wish.key,
        age=meta.created,
        bytes=wish.bytes,
        count=wish.count,
        holders=holders,
        avoid=frozenset(view.failed.get(wish.key, ())),
        reasons=reasons,
    )


def _bins(view: _View, wishes: Sequence[_Wish]) -> list[Bin]:
    sizes = {wish.key: wish.bytes for wish in wishes}
    held: dict[str, dict[str, int]] = {name: {} for name in view.usable}
    for name, replica in view.usable.items():
        for version in _versions(replica):
            if version.phase != VersionPhase.FAILED:
                held[name][version.key] = max(version.bytes, sizes.get(version.key, 0))
    for key, names in view.holders.items():
        for name in names:
            held[name].setdefault(key, sizes.get(key, 0))
    return [
        Bin(name, memory.adapters, max(sum(held[name].values()), memory.adapters_used))
        for name, replica in view.usable.items()
        if replica.state and (memory := replica.state.memory)
    ]


def _loads(wishes: Sequence[_Wish], placed: Mapping[str, Placed], view: _View) -> tuple[list[Load], float | None]:
    loads: list[Load] = []
    moments: list[float] = []
    for wish in wishes:
        meta, spec = wish.case.adapter.meta, wish.case.adapter.spec
        if spec is None or wish.fixed:
            continue
        for choice in placed[wish.key].choices:
            target = view.target(choice.replica, meta.uid, wish.digest)
            moment = _next_call(view.memory.loads.get(target))
            if moment is None or view.phases.get((choice.replica, wish.key)) in HOLDING:
                continue
            if moment <= view.now:
                loads.append(Load(target, spec.source.uri, meta.namespace, meta.name, choice.reason))
            else:
                moments.append(moment)
    return loads, min(moments, default=None)


def _unloads(cases: Sequence[Case], placed: Mapping[str, Placed], view: _View) -> tuple[list[Unload], float | None]:
    known = {case.adapter.meta.uid: case for case in cases}
    wanted = {(choice.replica, key) for key, where in placed.items() for choice in where.choices}
    unloads: list[Unload] = []
    moments: list[float] = []
    for name, replica in view.usable.items():
        for version in _versions(replica):
            if (name, version.key) in wanted or version.phase == VersionPhase.DRAINING:
                continue
            target = view.target(name, version.uid, version.digest)
            moment = _next_call(view.memory.unloads.get(target))
            if moment is None or _is_pending(view.memory.loads.get(target)):
                continue
            moment = max(moment, _grace_end(known.get(version.uid), version, view.now))
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


def _grace_end(case: Case | None, version: VersionState, now: float) -> float:
    if case is None or version.phase == VersionPhase.FAILED:
        return 0.0
    return now + GRACE_SECONDS - seconds_since(case.adapter.status.conditions, ConditionType.READY, now)
