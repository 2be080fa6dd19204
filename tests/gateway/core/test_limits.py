from hypothesis import given
from hypothesis import strategies as st

from lorafleet_contracts.resources.tenant import TenantLimits
from lorafleet_gateway.core.limits import (
    Ask,
    Budget,
    Ledger,
    Limit,
    Limits,
    Refused,
    admit,
    charge,
    estimate_tokens,
    read_limits,
)

REQUESTS = Limits(Budget(20, 40), None, None)
TOKENS = Limits(None, Budget(10, 600), None)


def ask(number: int = 0, tokens: int = 0) -> Ask:
    return Ask(f"r{number}", tokens)


def test_absent_limits_are_none_and_the_burst_is_a_seconds_worth_by_default() -> None:
    assert read_limits(TenantLimits()) is None
    found = read_limits(TenantLimits(requests_per_second=20, tokens_per_minute=600, concurrent_requests=3))
    assert found == Limits(Budget(20, 20), Budget(10, 600), 3)
    assert found.counted_to_the_end
    assert not REQUESTS.counted_to_the_end
    assert read_limits(TenantLimits(requests_per_second=20, burst=40)) == REQUESTS


def test_the_burst_comes_at_once_and_then_the_rate() -> None:
    ledger = Ledger(at=0.0)
    at_once = [admit(ledger, REQUESTS, ask(), 0.0) for _ in range(41)]
    assert at_once[:40] == [None] * 40
    assert at_once[40] == Refused(Limit.REQUESTS, 0.05)
    later = [admit(ledger, REQUESTS, ask(), step / 200) for step in range(1, 12_001)]  # 200 a second for a minute
    assert sum(each is None for each in later) in (1_199, 1_200)  # floats


def test_a_refused_request_costs_nothing() -> None:
    limits = Limits(Budget(1, 2), Budget(1, 100), 1)
    ledger = Ledger(at=0.0)
    assert admit(ledger, limits, ask(1, tokens=10), 0.0) is None
    assert admit(ledger, limits, ask(2, tokens=10), 0.0) == Refused(Limit.CONCURRENCY, 1.0)
    assert (ledger.requests, ledger.tokens, ledger.open) == (1, 90, {"r1"})
    assert admit(ledger, limits, ask(2, tokens=95), 0.0) == Refused(Limit.TOKENS, 5.0)
    assert ledger.requests == 1


def test_tokens_that_engines_counted_leave_a_debt_that_must_be_paid_first() -> None:
    ledger = Ledger(at=0.0)
    assert admit(ledger, TOKENS, ask(1, tokens=100), 0.0) is None
    charge(ledger, TOKENS, 700, 0.0)
    charge(ledger, TOKENS, -100, 0.0)  # the request has ended: the estimate comes back
    assert admit(ledger, TOKENS, ask(2, tokens=50), 0.0) == Refused(Limit.TOKENS, 15.0)
    assert admit(ledger, TOKENS, ask(2, tokens=50), 15.0) is None


def test_a_request_above_the_whole_budget_gets_in_when_that_is_full() -> None:
    ledger = Ledger(at=0.0)
    assert admit(ledger, TOKENS, ask(1, tokens=5_000), 0.0) is None
    assert ledger.tokens == -4_400
    assert admit(ledger, TOKENS, ask(2, tokens=5_000), 1.0) == Refused(Limit.TOKENS, 499.0)


def test_what_comes_back_never_exceeds_the_budget() -> None:
    ledger = Ledger(at=0.0)
    charge(ledger, TOKENS, -1_000, 0.0)
    assert ledger.tokens == 600


def test_smaller_limits_count_at_once_and_new_ones_begin_full() -> None:
    ledger = Ledger(at=0.0)
    assert admit(ledger, REQUESTS, ask(), 0.0) is None
    smaller = Limits(Budget(1, 1), Budget(10, 600), None)
    assert admit(ledger, smaller, ask(tokens=600), 0.0) is None
    assert admit(ledger, smaller, ask(tokens=1), 0.5) == Refused(Limit.REQUESTS, 0.5)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    ledger = Ledger(at=100.0)
    for _ in range(40):
        assert admit(ledger, REQUESTS, ask(), 100.0) is None
    assert admit(ledger, REQUESTS, ask(), 0.0) is not None
    assert admit(ledger, REQUESTS, ask(), 100.0) is not None


def test_an_estimate_is_bounded_by_the_window() -> None:
    assert estimate_tokens(400, 50, 8192) == 150
    assert estimate_tokens(8 << 20, 50, 8192) == 8192


@given(
    rate=st.integers(1, 50),
    burst=st.integers(1, 100),
    pauses=st.lists(st.integers(0, 200), max_size=40),
)
def test_no_pattern_of_arrivals_gets_more_than_the_burst_and_the_rate(rate: int, burst: int, pauses: list[int]) -> None:
    limits, ledger, now, admitted = Limits(Budget(rate, burst), None, None), Ledger(at=0.0), 0.0, 0
    for pause in pauses:
        now += pause / 100
        admitted += admit(ledger, limits, ask(), now) is None
    assert admitted <= burst + rate * now + 1e-6


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 500), st.integers(0, 900)), max_size=12))
def test_tokens_are_paid_in_the_long_run_however_wrong_the_estimates(steps: list[tuple[int, int, int]]) -> None:
    """Each request asks for one number, takes another, and ends at once."""
    ledger, now, taken = Ledger(at=0.0), 0, 0
    for number, (pause, asked, used) in enumerate(steps):
        now += pause
        if admit(ledger, TOKENS, ask(number, tokens=asked), now) is None:
            charge(ledger, TOKENS, used - asked, now)
            taken += used
    assert taken <= 600 + 10 * now + 900 + 1e-6  # the last one may leave a debt
