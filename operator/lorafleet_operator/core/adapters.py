"""The verdict on one adapter: its status from what was observed. Called by the planning; writes and places nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from lorafleet_contracts.admin import QualityState
from lorafleet_contracts.conditions import Condition, ConditionType, Reason, find_condition
from lorafleet_contracts.names import SHARED_SET
from lorafleet_contracts.probe import QUANTISED_REL_L2, QUANTISED_SAME_ARGMAX
from lorafleet_contracts.resources.adapter import (
    LoraAdapterStatus,
    Placement,
    PopularityStatus,
    ReplicaCounts,
    VersionStatus,
)
from lorafleet_operator.core.admission import refuse_missing_pool
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.conditions import Draft, Refusal, is_true, settle, stand
from lorafleet_operator.core.places import Placed
from lorafleet_operator.core.problems import does_not_fit, explain, needs_owner
from lorafleet_operator.core.ranks import class_of
from lorafleet_operator.core.snapshot import Adapter, Attempt
from lorafleet_operator.core.sources import trust_mark
from lorafleet_operator.core.verification import Verification

T = ConditionType
SHOWN = 8
"""Places in a status at most."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the engines show of one adapter.

    `placed`: where the target version belongs, in the set of replicas `set`; `resident`: usable replicas of that set
    that answer with it; `serving`: whether any at home answers with the version that serves; `failing`: failed loads by
    replica; `usable`: replicas of the set that serve at all; `ceilings`: the pool's rank classes; `quantised`: whether
    the base is; `quality`: what that does to the target version, once an engine has said it.
    """

    placed: Placed | None
    resident: frozenset[str]
    serving: bool
    failing: Mapping[str, Attempt]
    usable: int
    set: str = SHARED_SET
    ceilings: tuple[int, ...] = ()
    quantised: bool = False
    quality: QualityState | None = None
    popularity: PopularityStatus | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A verdict in short. `ready` None: not ready, but on the way; False: not ready, and waiting for its owner."""

    ready: bool | None
    why: Refusal
    verified: Draft
    placed: Draft
    accepted: Draft
    digest: str | None
    passing: bool = True
    set: str | None = None


@dataclass(frozen=True, slots=True)
class _Record:
    """What a status records of verified files, and of the set of replicas where the version that serves is."""

    set: str | None
    rank: int | None
    rank_class: int | None
    bytes: int | None
    target_modules: list[str]
    verified_digest: str | None
    verified_generation: int | None
    verified_by: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is newly to be said of an adapter. `compose` makes the status: the costly half, done for what is written."""

    case: Case
    _seen: Observed
    _outcome: _Outcome
    _record: _Record
    _drafts: list[Draft]

    @property
    def progress(self) -> bool:
        """Whether it is but a word of progress, which a verdict may make needless meanwhile."""
        return self._outcome.ready is None

    def compose(self, now: float) -> LoraAdapterStatus:
        """The status to write at epoch second `now`."""
        adapter = self.case.adapter
        conditions = settle(self._drafts, adapter.status.conditions, adapter.meta.generation, now)
        return _compose(self.case, self._seen, self._outcome, self._record, conditions)


def judge_adapter(case: Case, seen: Observed) -> Verdict | None:
    """The verdict to write, or None when the one that stands says the same or nothing newsworthy has happened."""
    outcome = _decide(case, seen)
    drafts = _drafts(outcome, case, seen)
    record = _record(case, outcome, seen)
    news = _is_news(case, outcome, drafts, record) or (outcome.ready is True and _has_moved(case.adapter.status, seen))
    return Verdict(case, seen, outcome, record, drafts) if news else None


def news_of_warnings(adapter: Adapter, status: LoraAdapterStatus) -> str | None:
    """The message of a new status that accepts files with warnings, where the old one did not say the same."""
    new, old = (find_condition(each.conditions, T.VERIFIED) for each in (status, adapter.status))
    if new is None or new.reason != Reason.VERIFIED_WITH_WARNINGS:
        return None
    said = old is not None and (old.reason, old.message) == (new.reason, new.message)
    return None if said else new.message


def judge_orphan_adapter(adapter: Adapter, now: float) -> LoraAdapterStatus | None:
    """The verdict on an adapter whose pool does not exist, or None when it stands already."""
    case = Case(adapter, refuse_missing_pool(adapter.pool), Verification())
    unseen = Observed(None, frozenset(), serving=False, failing={}, usable=0, popularity=adapter.status.popularity)
    verdict = judge_adapter(case, unseen)
    return verdict.compose(now) if verdict else None


def _decide(case: Case, seen: Observed) -> _Outcome:
    accepted = Draft(T.ACCEPTED, True, Reason.ACCEPTED)
    unplaced = Draft(T.PLACED, None, Reason.PROGRESSING)
    standing = None if case.revoked else case.serving
    if case.denial:
        verified = Draft(T.VERIFIED, None, case.denial.reason)
        denied = Draft(T.ACCEPTED, False, case.denial.reason, case.denial.message)
        return _Outcome(False, case.denial, verified, unplaced, denied, standing)
    if case.suspended:
        why = Refusal(Reason.SUSPENDED, "spec.suspend is set")
        parked = Draft(T.PLACED, False, Reason.SUSPENDED)
        return _Outcome(False, why, Draft(T.VERIFIED, None, Reason.SUSPENDED), parked, accepted, None)
    verified = _verified(case, seen)
    if case.verification.refusal:
        return _Outcome(False, case.verification.refusal, verified, unplaced, accepted, standing)
    if case.target is None:
        why = case.verification.trouble or Refusal(verified.reason, verified.message)
        return _Outcome(None, why, verified, unplaced, accepted, standing, passing=case.verification.trouble is None)
    return _decide_placement(case, seen, verified, accepted)


def _verified(case: Case, seen: Observed) -> Draft:
    facts, refusal, trouble = case.verification.facts, case.verification.refusal, case.verification.trouble
    if refusal:
        return Draft(T.VERIFIED, False, refusal.reason, refusal.message)
    if trouble:
        return Draft(T.VERIFIED, None, trouble.reason, trouble.message)
    if facts is None and seen.usable == 0:
        where = "" if seen.set == SHARED_SET else f" of set {seen.set}"
        told = f"no replica{where} is ready to fetch and verify the files"
        return Draft(T.VERIFIED, None, Reason.AWAITING_REPLICA, told)
    if facts is None:
        return Draft(T.VERIFIED, None, Reason.INSPECTING, "a replica fetches and verifies the files")
    before = find_condition(case.adapter.status.conditions, T.VERIFIED)
    if facts.warnings is None and before is not None and before.status == "True":
        return Draft(T.VERIFIED, True, Reason(before.reason), before.message)
    if facts.warnings:
        return Draft(T.VERIFIED, True, Reason.VERIFIED_WITH_WARNINGS, "; ".join(facts.warnings))
    return Draft(T.VERIFIED, True, Reason.VERIFIED)


def _decide_placement(case: Case, seen: Observed, verified: Draft, accepted: Draft) -> _Outcome:
    chosen = [choice.replica for choice in seen.placed.choices] if seen.placed else []
    moves = case.serving == case.target and case.home != seen.set
    if moves and seen.serving and not _may_flip(chosen, seen):
        # From one set of replicas to another as from one version to the next: it serves where it is until then.
        coming = Draft(T.PLACED, True, Reason.PLACED, f"moving from set {case.home} to {seen.set}")
        return _Outcome(True, Refusal(Reason.READY, ""), verified, coming, accepted, case.target, set=case.home)
    if seen.usable == 0:
        where = "the pool" if seen.set == SHARED_SET else f"set {seen.set}"
        why = Refusal(Reason.NO_REPLICA_READY, f"no replica of {where} is ready")
        waiting = Draft(T.PLACED, None, Reason.AWAITING_REPLICA)
        return _Outcome(None, why, verified, waiting, accepted, case.serving)
    if not chosen:
        facts = case.verification.facts
        why = does_not_fit(facts.bytes if facts else 0, (seen.placed.most_free if seen.placed else 0) or 0)
        homeless = Draft(T.PLACED, False, why.reason, why.message)
        return _Outcome(False, why, verified, homeless, accepted, case.serving)
    missing = _shortfall(case, seen, len(chosen)) or _troubles(case, seen, chosen)
    placed = Draft(T.PLACED, True, Reason.PLACED, missing)
    serves = bool(seen.resident) if case.serving == case.target else _may_flip(chosen, seen)
    if serves:
        return _Outcome(True, Refusal(Reason.READY, ""), verified, placed, accepted, case.target, set=seen.set)
    failures = [seen.failing[name] for name in chosen if name in seen.failing]
    problem = failures[0].problem if len(failures) == len(chosen) else None
    if problem is not None:
        why = explain(problem, case.declared)
        ready = False if needs_owner(failures[0]) else None
        return _Outcome(ready, why, verified, placed, accepted, case.serving, passing=False)
    why = Refusal(Reason.LOADING, "a replica loads the adapter")
    return _Outcome(None, why, verified, placed, accepted, case.serving)


def _may_flip(chosen: list[str], seen: Observed) -> bool:
    """Routing moves once every chosen replica answers or has failed to, and at least one answers."""
    answered = [name for name in chosen if name in seen.resident]
    return bool(answered) and all(name in seen.resident or name in seen.failing for name in chosen)


def _shortfall(case: Case, seen: Observed, chosen: int) -> str:
    wanted = case.adapter.spec.min_replicas if case.adapter.spec else chosen
    if chosen >= wanted:
        return ""
    cause = f"only {seen.usable} ready" if seen.usable < wanted else "the others have no room"
    return f"on {chosen} of {wanted} wanted replicas: {cause}"


def _troubles(case: Case, seen: Observed, chosen: list[str]) -> str:
    """What keeps the version from replicas that should have it, once trying again has not helped either."""
    told = []
    for name in chosen:
        attempt = seen.failing.get(name)
        if name not in seen.resident and attempt and attempt.problem and attempt.failures > 1:
            told.append(f"not on {name}: {explain(attempt.problem, case.declared).message}")
    return "; ".join(told[:SHOWN])


def _drafts(outcome: _Outcome, case: Case, seen: Observed) -> list[Draft]:
    reason, message = outcome.why.reason, outcome.why.message
    suspended = reason == Reason.SUSPENDED
    stalled = outcome.ready is False and not suspended
    if outcome.ready:
        available = Draft(T.AVAILABLE, True, Reason.READY)
    elif seen.serving and outcome.digest is not None:
        available = Draft(T.AVAILABLE, True, Reason.OLD_VERSION_SERVES, f"{outcome.digest} serves")
    else:
        available = Draft(T.AVAILABLE, False, Reason.SUSPENDED if suspended else Reason.NOT_SERVING)
    return [
        Draft(T.READY, bool(outcome.ready), reason, message),
        available,
        outcome.accepted,
        outcome.verified,
        outcome.placed,
        Draft(T.RECONCILING, True, reason, message)
        if outcome.ready is None
        else Draft(T.RECONCILING, False, Reason.SUSPENDED if suspended else Reason.RECONCILED),
        Draft(T.STALLED, True, reason, message) if stalled else Draft(T.STALLED, False, Reason.RECONCILED),
        *_quality(case, seen),
    ]


def _quality(case: Case, seen: Observed) -> list[Draft]:
    """What a quantised base does to the target version. A verdict stands: replicas may differ in the last digit."""
    if not seen.quantised or case.target is None:
        return []
    before, found = find_condition(case.adapter.status.conditions, T.QUALITY_CHECKED), seen.quality
    known = before is not None and before.status != "Unknown" and before.message.startswith(case.target)
    if before is not None and known and (found is None or found.passed == (before.status == "True")):
        return [Draft(T.QUALITY_CHECKED, before.status == "True", Reason(before.reason), before.message)]
    if found is None:
        return [Draft(T.QUALITY_CHECKED, None, Reason.CHECKING_QUALITY, "a replica compares it on the probe set")]
    reason = Reason.QUALITY_KEPT if found.passed else Reason.QUALITY_LOST
    message = (
        f"{case.target}: against the unquantised base the logits on the probe set differ by {found.rel_l2:.2g} "
        f"(relative L2, allowed {QUANTISED_REL_L2:g}), the best token is the same at {found.same_argmax:.1%} of "
        f"{found.positions} positions (needed {QUANTISED_SAME_ARGMAX:.0%})"
    )
    return [Draft(T.QUALITY_CHECKED, found.passed, reason, message)]


def _record(case: Case, outcome: _Outcome, seen: Observed) -> _Record:
    """What is known of the files of the version that serves; a newer one is recorded when the routing moves to it."""
    old, facts = case.adapter.status, case.verification.facts
    home = outcome.set or case.home
    place = None if home == SHARED_SET or outcome.digest is None else home
    if facts is not None and case.target is not None and outcome.digest in (None, case.target):
        held, modules = class_of(facts.rank, seen.ceilings), list(facts.target_modules)
        found = facts.digest, case.adapter.meta.generation, _mark(case)
        return _Record(place, facts.rank, held, facts.bytes, modules, *found)
    held = old.rank_class
    verified = old.verified_digest, old.verified_generation, old.verified_by
    return _Record(place, old.rank, held, old.bytes, old.target_modules, *verified)


def _mark(case: Case) -> str | None:
    """The mark of the signers by whose signatures the files were taken."""
    signers = case.pool.trust.signers if case.pool else []
    return trust_mark(each.public_key for each in signers) or None


def _compose(
    case: Case, seen: Observed, outcome: _Outcome, record: _Record, conditions: list[Condition]
) -> LoraAdapterStatus:
    old, choices = case.adapter.status, seen.placed.choices if seen.placed else ()
    versions = [VersionStatus(digest=outcome.digest, state="Serving")] if outcome.digest else []
    if case.target is not None and case.target != outcome.digest:
        versions.append(VersionStatus(digest=case.target, state="Loading"))
    if case.target is not None and outcome.digest in (None, case.target):
        counts: ReplicaCounts | None = ReplicaCounts(resident=len(seen.resident), desired=len(choices))
        held = [
            Placement(replica=each.replica, digest=case.target, reason=each.reason)
            for each in choices
            if each.replica in seen.resident
        ][:SHOWN]
    elif outcome.digest:
        counts, held = old.replicas, old.placements
    else:
        counts, held = ReplicaCounts(), []
    return LoraAdapterStatus(
        observed_generation=case.adapter.meta.generation,
        conditions=conditions,
        digest=outcome.digest,
        set=record.set,
        rank=record.rank,
        rank_class=record.rank_class,
        bytes=record.bytes,
        target_modules=record.target_modules,
        verified_digest=record.verified_digest,
        verified_generation=record.verified_generation,
        verified_by=record.verified_by,
        replicas=counts,
        placements=held,
        versions=versions,
        popularity=seen.popularity,
    )


def _is_news(case: Case, outcome: _Outcome, drafts: list[Draft], record: _Record) -> bool:
    """Whether what a status says has changed; counts and places alone are news only where they have come to rest."""
    old, generation = case.adapter.status, case.adapter.meta.generation
    if old.observed_generation == generation and outcome.ready is None and outcome.passing:
        # One word of progress a generation is enough, and what stalled it stands until there is an answer.
        was_waiting = is_true(old.conditions, T.RECONCILING) or (
            is_true(old.conditions, T.STALLED) and is_true(old.conditions, T.ACCEPTED)
        )
        available = any(each.type == T.AVAILABLE and each.status for each in drafts)
        if was_waiting and is_true(old.conditions, T.AVAILABLE) == available and old.digest == outcome.digest:
            return False
    stood = _Record(
        old.set,
        old.rank,
        old.rank_class,
        old.bytes,
        old.target_modules,
        old.verified_digest,
        old.verified_generation,
        old.verified_by,
    )
    return (
        old.observed_generation != generation
        or old.digest != outcome.digest
        or stood != record
        or not stand(drafts, old.conditions)
    )


def _has_moved(old: LoraAdapterStatus, seen: Observed) -> bool:
    """Whether a version that serves is exactly where it belongs and the status shows other places than that."""
    chosen = {choice.replica for choice in seen.placed.choices} if seen.placed else set()
    if seen.resident != chosen:
        return False
    counts = ReplicaCounts(resident=len(chosen), desired=len(chosen))
    # Of more places than a status can hold, which are shown does not matter.
    return old.replicas != counts or (len(chosen) <= SHOWN and {each.replica for each in old.placements} != chosen)
