"""When one tenant gets a set of replicas of its own, and when it gives it back: a state machine as a table.

Called by dedication.py, which shares the budget among tenants. Pure; what it must remember stands in the tenant's
status, where `since` counts from the last change of stage or reason. Law: every stage comes to an end.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lorafleet_contracts.admin import ParityState
from lorafleet_contracts.names import BASE_MODEL, MERGED_PREFIX
from lorafleet_contracts.probe import MERGED_EXACT, MERGED_FACTOR
from lorafleet_contracts.resources.tenant import PromotionStatus
from lorafleet_operator.core.conditions import parse_timestamp

MERGE_SHARE = 0.8
"""Of a tenant's load: an adapter that carries so much is worth weights of its own."""
SLACK = 0.1
"""By so much of a threshold the load may swing back without a wait starting over."""
SETTLE_SECONDS = 5.0
"""After which every gateway has a routing table that was published."""
WARM_SECONDS = 1800.0
"""What a set may take to be ready, and once more to be warm."""
LOST_SECONDS = 600.0
"""How long a set may be without a usable replica before it is given up; requests are on the shared set meanwhile."""
DRAIN_SECONDS = 600.0
"""How long running requests of a set that is given up are waited for."""


class Stage(StrEnum):
    """Where a tenant's traffic is, and where it goes."""

    SHARED = "Shared"
    WARMING = "Warming"
    CHECKING = "Checking"
    CUTTING_OVER = "CuttingOver"
    DEDICATED = "Dedicated"
    DRAINING = "Draining"


class Event(StrEnum):
    """What can happen to a tenant."""

    START = "Start"
    STARTED = "Started"
    PASSED = "Passed"
    SETTLED = "Settled"
    WITHDRAWN = "Withdrawn"
    FAILED = "Failed"
    EMPTY = "Empty"


TABLE: Mapping[tuple[Stage, Event], Stage] = {
    (Stage.SHARED, Event.START): Stage.WARMING,
    (Stage.WARMING, Event.STARTED): Stage.CHECKING,
    (Stage.WARMING, Event.WITHDRAWN): Stage.DRAINING,
    (Stage.WARMING, Event.FAILED): Stage.DRAINING,
    (Stage.CHECKING, Event.PASSED): Stage.CUTTING_OVER,
    (Stage.CHECKING, Event.WITHDRAWN): Stage.DRAINING,
    (Stage.CHECKING, Event.FAILED): Stage.DRAINING,
    (Stage.CUTTING_OVER, Event.SETTLED): Stage.DEDICATED,
    (Stage.CUTTING_OVER, Event.WITHDRAWN): Stage.DRAINING,
    (Stage.DEDICATED, Event.WITHDRAWN): Stage.DRAINING,
    (Stage.DEDICATED, Event.FAILED): Stage.DRAINING,
    (Stage.DRAINING, Event.EMPTY): Stage.SHARED,
}


class Why(StrEnum):
    """Reasons of a promotion's status."""

    ABOVE_THRESHOLD = "AboveThreshold"
    BELOW_THRESHOLD = "BelowThreshold"
    NO_ROOM = "NoRoom"
    ISOLATION = "Isolation"
    LOAD = "Load"
    MERGING = "Merging"
    LOADING = "Loading"
    PARITY_PASSED = "ParityPassed"
    WARM = "Warm"
    SERVING = "Serving"
    SET_LOST = "SetLost"
    PARITY_FAILED = "ParityFailed"
    NOT_READY = "NotReady"
    VERSION_CHANGED = "VersionChanged"
    NOT_WANTED = "NotWanted"
    BUDGET_REDUCED = "BudgetReduced"
    DEMOTED = "Demoted"


RETRY_SECONDS: Mapping[str, float] = {Why.PARITY_FAILED: 86_400.0, Why.NOT_READY: 600.0, Why.SET_LOST: 600.0}
"""How long a tenant that was sent back waits at least; another version ends the first of them."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A pool's thresholds: shares of what one replica of the plain base carries, and seconds."""

    enabled: bool
    promote_at: float
    promote_after: float
    demote_at: float
    demote_after: float


@dataclass(frozen=True, slots=True)
class Own:
    """A tenant's set as it is: `wanted` replicas by its StatefulSet (0: not made yet), and what its engines say.

    `heard` replicas have told their state, `usable` ones serve, `warm` ones have all they should answer; `parity` is
    the worst of a merged set's, `busy` counts running requests, `trouble` is why one does not get on.
    """

    wanted: int = 0
    heard: int = 0
    usable: int = 0
    warm: int = 0
    busy: int = 0
    parity: ParityState | None = None
    trouble: str = ""
    parity_failed: bool = False


@dataclass(frozen=True, slots=True)
class TenantCase:
    """One tenant. `load` is in replicas of the plain base; `share` of it goes to adapter `top` (a uid, or the base).

    `serving` maps uid to the version (`uid@digest`, "" for none) and source ("" while that is about to change) of what
    tenants get of the adapters that it may call;
    `admitted` is False where the pool does not admit the tenant or its spec can't be read; `at_home`: some of its
    adapters are answered by its own set only, and may yet be taken elsewhere.
    """

    key: str
    uid: str
    created: str
    isolated: bool
    load: float
    status: PromotionStatus | None = None
    own: Own = Own()
    top: str = ""
    share: float = 0.0
    serving: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    admitted: bool = True
    at_home: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """One tenant at epoch second `now`. `room`: replicas that it may take now; `over`: its set must make way."""

    case: TenantCase
    rules: Rules
    now: float
    room: int = 0
    needs: int = 1
    gives_back: int = 0
    over: bool = False

    @property
    def stage(self) -> Stage:
        """Where it stands; a tenant without a status has never had a set."""
        return Stage(self.case.status.stage) if self.case.status else Stage.SHARED

    @property
    def reason(self) -> Why | None:
        """The reason that stands."""
        return Why(self.case.status.reason) if self.case.status else None

    @property
    def age(self) -> float:
        """Seconds since stage and reason are what they are."""
        return self.now - parse_timestamp(self.case.status.since) if self.case.status else math.inf

    @property
    def load_words(self) -> str:
        """The load for messages."""
        return f"its load is {self.case.load:.0%} of what one replica of the base carries"


@dataclass(frozen=True, slots=True)
class Found:
    """What happened (None: nothing that moves the stage), and why. Without a message the one that stands is kept."""

    event: Event | None
    why: Why | None
    message: str = ""


def find_event(moment: Moment) -> Found:
    """What moves a tenant from its stage now."""
    if moment.stage not in (Stage.SHARED, Stage.DRAINING) and (withdrawn := _withdrawn(moment)):
        return withdrawn
    return _FINDERS[moment.stage](moment)


def version_to_merge(case: TenantCase) -> tuple[str, str] | None:
    """The version and its source, where one adapter carries most of what only load promotes; None: a private set."""
    if case.isolated or case.top == BASE_MODEL or case.share < MERGE_SHARE:
        return None
    version, source = case.serving.get(case.top, ("", ""))
    return (version, source) if version and source else None


def _withdrawn(moment: Moment) -> Found | None:
    """Why a set should not be there any more, whatever became of it."""
    case, status = moment.case, moment.case.status
    merged = status is not None and (status.set or "").startswith(MERGED_PREFIX)
    if not case.admitted:
        return Found(Event.WITHDRAWN, Why.NOT_WANTED, "the pool does not admit the tenant as it is")
    if moment.over:
        return Found(Event.WITHDRAWN, Why.BUDGET_REDUCED, "promotion.maxDedicated allows fewer replicas than there are")
    if case.isolated and merged:
        return Found(Event.WITHDRAWN, Why.NOT_WANTED, "isolation: Dedicated takes a private set, not a merged one")
    if not case.isolated and not moment.rules.enabled:
        return Found(Event.WITHDRAWN, Why.NOT_WANTED, "promotion.enabled is false")
    if status is not None and status.version is not None:
        uid = status.version.partition("@")[0]
        serving = case.serving.get(uid)
        if serving is None or serving[0] != status.version:
            now = (serving and serving[0]) or "nothing"
            told = f"the set answers {status.version}, what serves of that adapter is {now}"
            return Found(Event.WITHDRAWN, Why.VERSION_CHANGED, told)
    return None


def _on_shared(moment: Moment) -> Found:
    case, rules, reason = moment.case, moment.rules, moment.reason
    if not case.admitted or not (case.isolated or rules.enabled):
        return Found(None, reason)
    if moment.age < RETRY_SECONDS.get(reason or "", 0.0) and not _is_another_version(moment):
        return Found(None, reason)
    if case.isolated:
        return _take(moment, Why.ISOLATION, "spec.isolation is Dedicated")
    waiting = reason in (Why.ABOVE_THRESHOLD, Why.NO_ROOM)
    if case.load < rules.promote_at * (1.0 - SLACK if waiting else 1.0):
        return Found(None, Why.BELOW_THRESHOLD, moment.load_words) if waiting else Found(None, reason)
    if case.top != BASE_MODEL and not all(case.serving.get(case.top, ("", ""))):
        return Found(None, reason)  # nothing serves of the adapter that the load was for, or soon something else will
    again = reason is Why.VERSION_CHANGED and moment.age < rules.promote_after
    if again or reason is Why.NO_ROOM or (waiting and moment.age >= rules.promote_after):
        return _take(moment, Why.LOAD, f"{moment.load_words}, promoted from {rules.promote_at:.0%}")
    told = f"{moment.load_words}; at {rules.promote_at:.0%} for {rules.promote_after:.0f} s it gets replicas of its own"
    return Found(None, Why.ABOVE_THRESHOLD, told)


def _is_another_version(moment: Moment) -> bool:
    """Whether what failed parity is not what would be merged now."""
    status, merge = moment.case.status, version_to_merge(moment.case)
    failed = status.version if status and moment.reason is Why.PARITY_FAILED else None
    return failed is not None and (merge is None or merge[0] != failed)


def _take(moment: Moment, why: Why, cause: str) -> Found:
    """Start a set if the replicas that it needs may be taken."""
    cost = f"it needs {moment.needs} of its own, the shared set could give back {moment.gives_back}"
    if moment.needs > moment.room:
        told = f"{cause}: {cost}, and promotion.maxDedicated and replicas.max leave {max(moment.room, 0)}"
        return Found(None, Why.NO_ROOM, told)
    return Found(Event.START, why, f"{cause}: {cost}")


def _in_warming(moment: Moment) -> Found:
    own = moment.case.own
    if own.parity_failed:
        return Found(Event.FAILED, Why.PARITY_FAILED, own.trouble)
    if own.wanted and own.heard >= own.wanted:
        merging = moment.case.status is not None and moment.case.status.version is not None
        return Found(Event.STARTED, Why.MERGING if merging else Why.LOADING, f"{own.heard} engines are up")
    return _unless_late(moment)


def _in_checking(moment: Moment) -> Found:
    own = moment.case.own
    if own.parity_failed:
        return Found(Event.FAILED, Why.PARITY_FAILED, own.trouble)
    parity = own.parity
    if parity is not None and parity.merged > max(MERGED_FACTOR * parity.unmerged, MERGED_EXACT):
        return Found(Event.FAILED, Why.PARITY_FAILED, _parity_words(parity))
    if own.wanted and own.warm >= own.wanted:
        if parity is not None:
            return Found(Event.PASSED, Why.PARITY_PASSED, _parity_words(parity))
        return Found(Event.PASSED, Why.WARM, f"{own.warm} replicas answer with all that they should")
    return _unless_late(moment)


def _unless_late(moment: Moment) -> Found:
    if moment.age < WARM_SECONDS:
        return Found(None, moment.reason)
    own = moment.case.own
    told = f"{own.warm} of {own.wanted} replicas were ready and warm after {WARM_SECONDS:.0f} s"
    return Found(Event.FAILED, Why.NOT_READY, f"{told}. {own.trouble}" if own.trouble else told)


def _in_cut_over(moment: Moment) -> Found:
    if moment.age < SETTLE_SECONDS:
        return Found(None, moment.reason)
    return Found(Event.SETTLED, Why.SERVING, moment.load_words)


def _in_dedicated(moment: Moment) -> Found:
    case, rules, reason = moment.case, moment.rules, moment.reason
    if case.own.usable == 0:
        if case.isolated:
            return Found(None, Why.SET_LOST, "no replica of the set serves, and isolation: Dedicated allows no other")
        if reason is Why.SET_LOST and moment.age >= LOST_SECONDS:
            return Found(Event.FAILED, Why.SET_LOST, f"no replica of the set has served for {LOST_SECONDS:.0f} s")
        return Found(None, Why.SET_LOST, "no replica of the set serves; requests are on the shared set meanwhile")
    waiting = reason is Why.BELOW_THRESHOLD
    if not case.isolated and case.load < rules.demote_at * (1.0 + SLACK if waiting else 1.0):
        if waiting and moment.age >= rules.demote_after:
            told = f"{moment.load_words}, below {rules.demote_at:.0%} for {rules.demote_after:.0f} s"
            return Found(Event.WITHDRAWN, Why.DEMOTED, told)
        told = f"{moment.load_words}; below {rules.demote_at:.0%} for {rules.demote_after:.0f} s it gives its set back"
        return Found(None, Why.BELOW_THRESHOLD, told)
    return Found(None, Why.SERVING, moment.load_words)


def _in_draining(moment: Moment) -> Found:
    over = moment.age >= SETTLE_SECONDS and moment.case.own.busy == 0 and not moment.case.at_home
    return Found(Event.EMPTY if over or moment.age >= DRAIN_SECONDS else None, moment.reason)


def _parity_words(parity: ParityState) -> str:
    return (
        f"relative L2 of logits from the model in fp32 is {parity.merged:.2e} merged and {parity.unmerged:.2e} "
        f"unmerged (allowed {MERGED_FACTOR:g} times that) at {parity.positions} positions, same best token at "
        f"{parity.same_argmax:.1%}"
    )


_FINDERS: Mapping[Stage, Callable[[Moment], Found]] = {
    Stage.SHARED: _on_shared,
    Stage.WARMING: _in_warming,
    Stage.CHECKING: _in_checking,
    Stage.CUTTING_OVER: _in_cut_over,
    Stage.DEDICATED: _in_dedicated,
    Stage.DRAINING: _in_draining,
}
