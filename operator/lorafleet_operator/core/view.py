"""The usable replicas, indexed by version in one pass. Called by the planning first of all; decides nothing."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lorafleet_contracts.admin import QualityState, VersionPhase, VersionState
from lorafleet_operator.core.problems import retry_at
from lorafleet_operator.core.snapshot import HOLDING, Attempt, InspectionKey, Memory, PoolSnapshot, Replica, VersionOn

SETTLE_SECONDS = 5.0
"""How long a call's success is believed before the engine's state shows it."""
SILENT_SECONDS = 60.0
"""How long a replica that left a call without an answer is given work only where nobody else can take it."""


@dataclass(frozen=True, slots=True)
class View:
    """What the usable replicas have and do; versions are named `{uid}@{digest}`, replicas by their names.

    `silent` replicas leave calls without an answer; `inspected` says where an adapter's files were verified.
    `holders` have a version or are getting it, `resident` answer with it; `failing` failed to take it when they
    were last asked, `failed` did so lately; `reasons` says why a load went to a replica; `quality` is what the first
    replica that has checked a version says. `leaving` replicas serve on, but get nothing new.
    """

    usable: Mapping[str, Replica]
    memory: Memory
    now: float
    versions: Mapping[str, Mapping[str, VersionState]]
    holders: Mapping[str, set[str]]
    resident: Mapping[str, set[str]]
    failed: Mapping[str, set[str]]
    failing: Mapping[str, Mapping[str, Attempt]]
    reasons: Mapping[tuple[str, str], str]
    quality: Mapping[str, QualityState]
    silent: frozenset[str]
    inspected: Mapping[InspectionKey, str]
    leaving: frozenset[str] = frozenset()

    def target(self, replica: str, uid: str, digest: str) -> VersionOn:
        """The name of one version on this life of a usable replica."""
        state = self.usable[replica].state
        return VersionOn(replica, state.boot_id if state else "", uid, digest)

    def of(self, name: str) -> "View":
        """The same of one set of replicas only."""
        usable = {each: replica for each, replica in self.usable.items() if replica.set == name}
        if len(usable) == len(self.usable):
            return self
        return replace(
            self,
            usable=usable,
            versions={each: self.versions[each] for each in usable},
            holders=_within(self.holders, usable),
            resident=_within(self.resident, usable),
            failed=_within(self.failed, usable),
            failing={
                key: {each: attempt for each, attempt in found.items() if each in usable}
                for key, found in self.failing.items()
            },
        )


def look(snapshot: PoolSnapshot, now: float) -> View:
    """Index a snapshot at epoch second `now`."""
    usable = {each.name: each for each in snapshot.replicas if each.usable}
    versions: dict[str, dict[str, VersionState]] = {}
    holders: dict[str, set[str]] = defaultdict(set)
    resident: dict[str, set[str]] = defaultdict(set)
    quality: dict[str, QualityState] = {}
    for name, replica in usable.items():
        found = versions[name] = {each.key: each for each in (replica.state.versions if replica.state else ())}
        for key, version in found.items():
            if version.phase in HOLDING:
                holders[key].add(name)
            if version.phase == VersionPhase.RESIDENT:
                resident[key].add(name)
            if version.quality is not None:
                quality.setdefault(key, version.quality)
    memory = snapshot.memory
    silent = frozenset(name for name, since in memory.silent.items() if now < since + SILENT_SECONDS)
    inspected = {key: each.replica for key, each in memory.inspections.items() if each.report is not None}
    view = View(usable, memory, now, versions, holders, resident, {}, {}, {}, quality, silent, inspected)
    return _recall(view, holders)


def _within(found: Mapping[str, set[str]], usable: Mapping[str, Replica]) -> dict[str, set[str]]:
    return {key: kept for key, names in found.items() if (kept := {each for each in names if each in usable})}


def _recall(view: View, holders: dict[str, set[str]]) -> View:
    """Add what the loads of these lives of the replicas came to."""
    failed: dict[str, set[str]] = defaultdict(set)
    failing: dict[str, dict[str, Attempt]] = defaultdict(dict)
    reasons: dict[tuple[str, str], str] = {}
    boots = {name: replica.state.boot_id for name, replica in view.usable.items() if replica.state}
    for target, attempt in view.memory.loads.items():
        if boots.get(target.replica) != target.boot_id:
            continue
        key = target.version
        reasons[target.replica, key] = attempt.reason
        if attempt.pending or (attempt.problem is None and view.now < attempt.at + SETTLE_SECONDS):
            holders[key].add(target.replica)
        if attempt.problem is not None:
            failing[key][target.replica] = attempt
            if retry_at(attempt) > view.now and not attempt.pending:
                failed[key].add(target.replica)
    return replace(view, failed=failed, failing=failing, reasons=reasons)
