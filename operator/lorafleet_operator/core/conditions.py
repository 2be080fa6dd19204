"""Builds and compares status conditions. Called by the verdicts of the three kinds; decides no verdict itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lorafleet_contracts.conditions import Condition, ConditionType, Reason, find_condition

MESSAGE_LIMIT = 32768


@dataclass(frozen=True, slots=True)
class Draft:
    """A condition before it is compared with what was written last. `status` None means Unknown."""

    type: ConditionType
    status: bool | None
    reason: Reason
    message: str = ""

    @property
    def word(self) -> str:
        """The status as Kubernetes spells it."""
        return "Unknown" if self.status is None else str(self.status)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an object can't be served as it is, and what its owner can do."""

    reason: Reason
    message: str


def settle(drafts: Iterable[Draft], old: list[Condition], generation: int, now: float) -> list[Condition]:
    """Turn drafts into conditions; lastTransitionTime is kept where the status is unchanged."""
    settled, stamp = [], timestamp(now)
    for draft in drafts:
        before = find_condition(old, draft.type)
        kept = before is not None and before.status == draft.word
        settled.append(
            Condition(
                type=draft.type.value,
                status=draft.word,  # type: ignore[arg-type]  # word gives one of the three
                reason=draft.reason.value,
                message=draft.message[:MESSAGE_LIMIT],
                observed_generation=generation,
                last_transition_time=before.last_transition_time if kept and before else stamp,
            )
        )
    return settled


def stand(drafts: Sequence[Draft], old: list[Condition]) -> bool:
    """Whether the conditions that were written last say the same as the drafts, in the same order."""
    if len(drafts) != len(old):
        return False
    for draft, before in zip(drafts, old, strict=True):  # a loop: this is asked of every adapter in every plan
        if before.type != draft.type or before.status != draft.word or before.reason != draft.reason:
            return False
        if before.message != draft.message[:MESSAGE_LIMIT]:
            return False
    return True


def is_true(conditions: list[Condition], kind: ConditionType) -> bool:
    """Whether a condition is there and True."""
    found = find_condition(conditions, kind)
    return found is not None and found.status == "True"


def timestamp(now: float) -> str:
    """Epoch seconds as RFC 3339 with whole seconds (metav1.Time)."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> float:
    """RFC 3339 as epoch seconds. Raises ValueError."""
    return datetime.fromisoformat(text).timestamp()
