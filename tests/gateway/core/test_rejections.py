"""What clients are told when the gateway answers itself: the code, what to do, and when to come back."""

import pytest

from lorafleet_gateway.core import rejections
from lorafleet_gateway.core.limits import Budget, Limit, Limits, Refused
from lorafleet_gateway.core.rejections import Rejection, over_limit

LIMITS = Limits(requests=Budget(2.0, 4.0), tokens=Budget(10.0, 600.0), concurrency=3)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Limit.REQUESTS, "2 requests per second"),
        (Limit.TOKENS, "600 tokens per minute"),
        (Limit.CONCURRENCY, "3 requests at a time"),
    ],
)
def test_a_429_names_the_limit_and_when_to_come_back(limit: Limit, words: str) -> None:
    answer = over_limit("acme/support", LIMITS, Refused(limit, 1.2))
    assert (answer.status, answer.code, answer.type) == (429, "rate_limit_exceeded", limit.value)
    assert answer.retry_after == 2, "rounded up, so that a client that waits so long is let in"
    assert words in answer.message
    assert "acme/support" in answer.message


def test_a_wait_of_nearly_nothing_is_a_second() -> None:
    assert over_limit("acme/support", LIMITS, Refused(Limit.REQUESTS, 0.001)).retry_after == 1


@pytest.mark.parametrize(
    "answer",
    [
        rejections.adapter_not_ready("support"),
        rejections.adapter_queue_full("support"),
        rejections.pool_not_ready("smol"),
        rejections.limits_unavailable(),
        rejections.starting(),
    ],
    ids=lambda answer: answer.code,
)
def test_what_passes_by_itself_says_when_to_try_again(answer: Rejection) -> None:
    assert (answer.status, answer.type) == (503, "server_error")
    assert answer.retry_after is not None
    assert answer.retry_after >= 1


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (rejections.tenant_not_accepted("three tenants are the most"), 403),
        (rejections.unknown_url("GET", "/v2"), 404),
        (rejections.method_not_allowed("GET", "/v1/completions", "POST"), 405),
        (rejections.body_too_large(7), 413),
        (rejections.invalid_body("No.", "model"), 400),
        (rejections.model_not_found("x"), 404),
    ],
    ids=lambda value: str(value),
)
def test_what_the_client_must_change_says_no_time(answer: Rejection, status: int) -> None:
    assert (answer.status, answer.type, answer.retry_after) == (status, "invalid_request_error", None)


def test_a_fault_of_the_gateway_s_own_tells_nothing_of_it() -> None:
    answer = rejections.internal_error()
    assert (answer.status, answer.type, answer.param) == (500, "server_error", None)


@pytest.mark.parametrize(
    "answer", [rejections.unknown_url("GET", "/" + "x" * 9999), rejections.model_not_found("x" * 9999)]
)
def test_what_a_client_sent_is_not_sent_back_whole(answer: Rejection) -> None:
    assert len(answer.message) < 300
