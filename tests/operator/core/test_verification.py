"""What is concluded from an engine's findings and from its problems."""

from dataclasses import replace

import pytest

from lorafleet_contracts.admin import Problem, ProblemCode
from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_operator.core.problems import LONGEST_RETRY_SECONDS, REFUSED_RETRY_SECONDS, explain, retry_at
from lorafleet_operator.core.snapshot import Attempt
from lorafleet_operator.core.verification import Verification, verify
from tests.support.fleet import NOW, digest_of, make_adapter, make_pool, report_for

SPEC = make_pool(targetModules=["q_proj", "v_proj"]).spec


def judge(attempt: Attempt | None, **spec: object) -> Verification:
    """The verification of a new adapter after an attempt."""
    assert SPEC is not None
    return verify(make_adapter("a", **spec), SPEC, attempt)


def found(**changes: object) -> Attempt:
    """An inspection that found something."""
    return Attempt(False, NOW, report=report_for("x", **changes))


def failed(code: ProblemCode, failures: int = 1) -> Attempt:
    """An inspection that failed."""
    return Attempt(False, NOW, failures, Problem(title="title", status=500, code=code, detail="why"))


def test_nothing_known_means_look_now() -> None:
    assert judge(None) == Verification(due=0.0)


def test_while_an_inspection_runs_none_is_due() -> None:
    assert judge(Attempt(True, NOW)) == Verification()
    assert judge(replace(failed(ProblemCode.INTERNAL, 2), pending=True)).due is None


@pytest.mark.parametrize("base", ["smollm2", "", "/tmp/model", "./model", "~/model"])
def test_the_base_matches_or_is_undeclared(base: str) -> None:
    verification = judge(found(base=base))
    assert verification.refusal is None
    assert verification.facts is not None
    assert bool(verification.facts.warnings) == (base != "smollm2")


def test_another_base_is_refused() -> None:
    refusal = judge(found(base="other/model")).refusal
    assert refusal is not None
    assert refusal.reason == Reason.BASE_MISMATCH


def test_where_digests_are_required_the_base_must_be_named() -> None:
    pool = make_pool(trust={"requireDigest": True}).spec
    assert pool is not None
    refusal = verify(make_adapter("a"), pool, found(base="")).refusal
    assert refusal is not None
    assert refusal.reason == Reason.BASE_MISMATCH
    assert verify(make_adapter("a"), pool, found(base="smollm2")).refusal is None


def test_a_module_that_the_pool_does_not_list_is_refused_by_name() -> None:
    refusal = judge(found(target_modules=["q_proj", "up_proj"])).refusal
    assert refusal is not None
    assert refusal.reason == Reason.TARGET_MODULE_NOT_ALLOWED
    assert "changes up_proj;" in refusal.message


@pytest.mark.parametrize(
    ("code", "declared", "reason"),
    [
        (ProblemCode.DIGEST_MISMATCH, True, Reason.DIGEST_MISMATCH),
        (ProblemCode.DIGEST_MISMATCH, False, Reason.SOURCE_DRIFTED),
        (ProblemCode.BASE_MISMATCH, False, Reason.BASE_MISMATCH),
        (ProblemCode.UNSUPPORTED_ADAPTER, False, Reason.UNSUPPORTED_ADAPTER),
        (ProblemCode.DOES_NOT_FIT, False, Reason.DOES_NOT_FIT),
        (ProblemCode.SOURCE_FORBIDDEN, False, Reason.SOURCE_NOT_ALLOWED),
        (ProblemCode.SIGNATURE_REFUSED, False, Reason.SIGNATURE_REFUSED),
        (ProblemCode.INVALID_REQUEST, False, Reason.INVALID),
    ],
)
def test_the_owners_faults_are_refusals_that_are_looked_at_rarely(
    code: ProblemCode, declared: bool, reason: Reason
) -> None:
    source = {"uri": "http://assets/a", "digest": digest_of("x")} if declared else {"uri": "http://assets/a"}
    verification = judge(failed(code), source=source)
    assert verification.refusal is not None
    assert verification.refusal.reason == reason
    assert verification.due == NOW + REFUSED_RETRY_SECONDS


@pytest.mark.parametrize(
    "code", [ProblemCode.SOURCE_UNREACHABLE, ProblemCode.LOADER_BUSY, ProblemCode.DRAINING, ProblemCode.INTERNAL]
)
def test_passing_troubles_are_told_from_the_second_time_on(code: ProblemCode) -> None:
    assert judge(failed(code, 1)).trouble is None
    trouble = judge(failed(code, 2)).trouble
    assert trouble is not None
    assert "why" in trouble.message


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ProblemCode.SOURCE_UNREACHABLE, Reason.SOURCE_UNREACHABLE),
        (ProblemCode.SOURCE_DENIED, Reason.SOURCE_DENIED),
        (ProblemCode.CREDENTIALS_UNUSABLE, Reason.CREDENTIALS_UNUSABLE),
        (ProblemCode.NOT_FOUND, Reason.SOURCE_UNREACHABLE),
    ],
)
def test_a_source_that_stays_away_is_the_owners_to_look_at_and_is_tried_on(code: ProblemCode, reason: Reason) -> None:
    assert judge(failed(code, 2)).refusal is None
    verification = judge(failed(code, 3))
    assert verification.refusal is not None
    assert verification.refusal.reason == reason
    assert verification.due == NOW + 4
    assert judge(failed(ProblemCode.LOADER_BUSY, 30)).refusal is None


def test_files_that_are_too_large_are_told_as_such_and_not_as_a_lack_of_memory() -> None:
    said = "adapter_config.json is larger than the 4194304 bytes allowed"
    refusal = explain(Problem(title="no", status=413, code=ProblemCode.DOES_NOT_FIT, detail=said), declared=False)
    assert refusal.reason == Reason.DOES_NOT_FIT
    assert refusal.message.startswith(f"{said}. Make the files smaller")


def test_retries_back_off_up_to_a_minute() -> None:
    waits = [retry_at(failed(ProblemCode.INTERNAL, n)) - NOW for n in (1, 2, 3, 7, 5000)]
    assert waits == [1, 2, 4, LONGEST_RETRY_SECONDS, LONGEST_RETRY_SECONDS]
    assert retry_at(Attempt(False, NOW)) == NOW


def test_every_unsupported_feature_is_listed() -> None:
    problem = Problem(title="t", status=422, code=ProblemCode.UNSUPPORTED_ADAPTER, reasons=["DoRA", "bias"])
    assert explain(problem, declared=False).message.startswith("DoRA; bias.")


def test_recorded_facts_of_this_generation_need_no_inspection() -> None:
    assert SPEC is not None
    status = LoraAdapterStatus(
        verified_generation=1, verified_digest=digest_of("x"), bytes=5, rank=4, target_modules=["q_proj"]
    )
    verification = verify(replace(make_adapter("a"), status=status), SPEC, None)
    assert verification.facts is not None
    assert (verification.facts.bytes, verification.facts.warnings) == (5, None)
    stale = replace(make_adapter("a", meta={"generation": 2}), status=status)
    assert verify(stale, SPEC, None) == Verification(due=0.0)
