"""Reads the engines' problem documents: whose fault it is, what to tell, when to try again. Called by the verdicts."""

from lorafleet_contracts.admin import Problem, ProblemCode
from lorafleet_contracts.conditions import Reason
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.snapshot import Attempt

TRANSIENT = frozenset(
    {
        ProblemCode.SOURCE_UNREACHABLE,
        ProblemCode.SOURCE_DENIED,
        ProblemCode.CREDENTIALS_UNUSABLE,
        ProblemCode.NOT_FOUND,
        ProblemCode.LOADER_BUSY,
        ProblemCode.DRAINING,
        ProblemCode.INTERNAL,
        ProblemCode.UNAUTHORIZED,
    }
)
"""Codes that can pass without the adapter's owner changing the object; all others are the owner's to fix."""

SOURCE_TROUBLES = frozenset(
    {
        ProblemCode.SOURCE_UNREACHABLE,
        ProblemCode.SOURCE_DENIED,
        ProblemCode.CREDENTIALS_UNUSABLE,
        ProblemCode.NOT_FOUND,
    }
)
SAID = {
    ProblemCode.SOURCE_FORBIDDEN: (
        Reason.SOURCE_NOT_ALLOWED,
        "{}. Only what the pool's sources.allow covers is connected to",
    ),
    ProblemCode.SOURCE_DENIED: (
        Reason.SOURCE_DENIED,
        "{}. Check spec.source and its credentials; trying again",
    ),
    ProblemCode.CREDENTIALS_UNUSABLE: (Reason.CREDENTIALS_UNUSABLE, "{}; trying again"),
    ProblemCode.SIGNATURE_REFUSED: (
        Reason.SIGNATURE_REFUSED,
        "{}. Sign the files with the key of one of the pool's trust.signers (`lorafleet push --key`)",
    ),
    ProblemCode.SOURCE_UNREACHABLE: (Reason.SOURCE_UNREACHABLE, "{}. Check spec.source.uri; trying again"),
    ProblemCode.NOT_FOUND: (Reason.SOURCE_UNREACHABLE, "{}. Check spec.source.uri; trying again"),
    ProblemCode.INVALID_REQUEST: (Reason.INVALID, "the engine refuses the request: {}"),
}
"""What needs no more than the engine's words and what to do."""
PATIENCE = 3
"""From so many failures in a row on, a source that can't be reached is the owner's to look at (tries go on)."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
REFUSED_RETRY_SECONDS = 300.0
"""Files may be put right in place, so even a refusal is looked at again, but rarely."""


def is_transient(problem: Problem) -> bool:
    """Whether trying again may help without anybody changing the object."""
    return problem.code in TRANSIENT


def needs_owner(attempt: Attempt) -> bool:
    """Whether a failed call is a verdict, not a trouble that will most likely pass."""
    problem = attempt.problem
    if problem is None:
        return False
    return not is_transient(problem) or (problem.code in SOURCE_TROUBLES and attempt.failures >= PATIENCE)


def retry_at(attempt: Attempt) -> float:
    """The epoch second from which a failed call may be repeated."""
    if attempt.problem is None:
        return attempt.at
    if not is_transient(attempt.problem):
        return attempt.at + REFUSED_RETRY_SECONDS
    return attempt.at + min(FIRST_RETRY_SECONDS * 2.0 ** min(attempt.failures - 1, 16), LONGEST_RETRY_SECONDS)


def explain(problem: Problem, declared: bool) -> Refusal:
    """The reason and the words for the status. `declared`: whether the spec itself names a digest."""
    said = problem.detail or problem.title
    match problem.code:
        case ProblemCode.DIGEST_MISMATCH if declared:
            return Refusal(
                Reason.DIGEST_MISMATCH,
                f"the files are not those of spec.source.digest: {said}. Correct the digest or the files",
            )
        case ProblemCode.DIGEST_MISMATCH:
            return Refusal(
                Reason.SOURCE_DRIFTED,
                f"the files changed since they were verified: {said}. Restore them, or change the spec to accept them",
            )
        case ProblemCode.BASE_MISMATCH:
            return Refusal(
                Reason.BASE_MISMATCH,
                f"the adapter was trained on another base: {said}. Point poolRef to that base's pool, "
                "or list the name in the pool's baseModel.aliases",
            )
        case ProblemCode.UNSUPPORTED_ADAPTER:
            reasons = "; ".join(problem.reasons) or said
            return Refusal(
                Reason.UNSUPPORTED_ADAPTER,
                f"{reasons}. Put the files right, or train the adapter without what is listed",
            )
        case ProblemCode.DOES_NOT_FIT if problem.needed is None:
            return Refusal(
                Reason.DOES_NOT_FIT,
                f"{said}. Make the files smaller, or give the pool more engine.memory.diskCache and hostCache",
            )
        case ProblemCode.DOES_NOT_FIT:
            return does_not_fit(problem.needed or 0, problem.free or 0)
        case code if code in SAID:
            reason, words = SAID[code]
            return Refusal(reason, words.format(said))
        case _:
            return Refusal(Reason.PROGRESSING, f"a replica could not do it yet: {said}. Trying again")


def does_not_fit(needed: int, free: int) -> Refusal:
    """No replica has room: `needed` and `free` in bytes."""
    return Refusal(
        Reason.DOES_NOT_FIT,
        f"needs {needed} bytes, the emptiest replica has {free} free for adapters. "
        "Remove or suspend adapters, train a smaller rank, or give the pool more replicas or memory",
    )
