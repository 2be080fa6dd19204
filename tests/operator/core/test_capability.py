"""What a replica can do, from what replicas were seen to do."""

import random
from dataclasses import replace

import pytest

from lorafleet_contracts.admin import StepsState, UsageState
from lorafleet_contracts.resources.pool import CapacityStatus, LoraPoolStatus
from lorafleet_operator.core.capability import (
    ASSUMED,
    HEADROOM_PERCENT,
    SUSTAINED_SECONDS,
    Capacity,
    Effort,
    Gauge,
    capacity_of,
    found,
    observe,
    recall,
    tell,
)
from lorafleet_operator.core.stepcost import LEAST_STEPS, add_steps, fit_steps
from tests.support.fleet import make_state

AIM = 0.03
KEPT = 1 - HEADROOM_PERCENT / 100


def look(
    seconds: float,
    rate: float,
    waiting: int = 0,
    step: float = 0.01,
    boot: str = "b0",
    width: int = 8,
    busy: float = 1.0,
) -> Effort:
    """A replica that has always done `rate` requests a second of 20 tokens, in steps of `step` seconds, which fill
    a share `busy` of the time and have `width` sequences."""
    done, count = round(rate * seconds), round(busy * seconds / step)
    steps = StepsState(steps=count, seconds=count * step, decode_steps=count, sequences=width * count)
    return Effort("r0", boot, waiting, done, 20 * done, steps)


def watch(gauge: Gauge, rate: float, seconds: int = 31, begin: float = 0.0, **how: float) -> Gauge:
    """Look every second."""
    for second in range(seconds + 1):
        gauge = observe(gauge, [look(second, rate, **how)], AIM, begin + second)  # type: ignore[arg-type]
    return gauge


def test_without_saturation_the_prior_is_assumed_and_more_is_believed() -> None:
    assert found(watch(Gauge(), 4)) == ASSUMED
    busy = found(watch(Gauge(), 20))
    assert (busy.effective_requests_per_s, busy.measured) == (pytest.approx(20, rel=0.05), False)


def test_requests_that_wait_all_the_time_show_the_limit() -> None:
    capacity = found(watch(Gauge(), 5, waiting=3))
    assert capacity.measured
    assert capacity.effective_requests_per_s == pytest.approx(5 * KEPT, rel=0.05)
    assert capacity.effective_tokens_per_s == pytest.approx(100 * KEPT, rel=0.05)
    assert capacity.penalty_percent is None


def test_a_short_queue_is_no_limit() -> None:
    gauge = Gauge()
    for second in range(100):
        gauge = observe(gauge, [look(second, 5, waiting=second % 20 < 15)], AIM, float(second))
    assert not found(gauge).measured


def test_a_queue_after_a_long_rest_is_no_limit() -> None:
    gauge = observe(Gauge(), [look(0, 0)], AIM, 0.0)
    gauge = observe(gauge, [Effort("r0", "b0", 50, 1, 20, StepsState())], AIM, 3600.0)
    assert not found(gauge).measured


def test_steps_longer_than_aimed_at_show_the_limit_too_in_proportion() -> None:
    calm = watch(Gauge(), 2, step=0.01)
    slow = watch(replace(calm, spans={}), 12, step=0.06, begin=100.0)
    assert found(slow).effective_requests_per_s == pytest.approx(12 * KEPT / 2, rel=0.05)


def test_an_engine_that_never_makes_it_is_not_strained_by_its_nature() -> None:
    assert not found(watch(Gauge(), 1, step=0.2)).measured
    slow = watch(replace(watch(Gauge(), 1, step=0.2), spans={}), 1, step=0.5, begin=100.0)
    assert found(slow).measured


@pytest.mark.parametrize("idle", [{"width": 1}, {"busy": 0.3}])
def test_slow_steps_of_an_engine_that_could_do_more_show_no_limit(idle: dict) -> None:
    calm = watch(Gauge(), 2, step=0.01)
    assert not found(watch(replace(calm, spans={}), 0.1, step=0.06, begin=100.0, **idle)).measured
    assert found(watch(replace(calm, spans={}), 0.1, step=0.06, begin=100.0)).measured


def test_a_measured_capacity_rises_with_what_is_done_easily_and_follows_what_is_found() -> None:
    measured = watch(Gauge(), 5, waiting=3)
    higher = watch(replace(measured, spans={}), 7, begin=100.0)
    assert found(higher).effective_requests_per_s == pytest.approx(7, rel=0.05)
    again = watch(replace(higher, spans={}), 3, waiting=1, begin=200.0)
    assert found(again).effective_requests_per_s == pytest.approx((7 + 3 * KEPT) / 2, rel=0.05)
    assert found(watch(replace(higher, spans={}), 1, begin=200.0)) == found(higher)


def test_a_capacity_found_too_small_is_raised_by_replicas_that_have_time_left() -> None:
    low = watch(Gauge(), 0.5, waiting=3)
    assert found(low).effective_requests_per_s == pytest.approx(0.5 * KEPT, rel=0.1)
    rested = watch(replace(low, spans={}), 2, busy=0.25, begin=100.0)
    assert found(rested).effective_requests_per_s == pytest.approx(2 / 0.25 * KEPT, rel=0.05)
    barely = watch(replace(low, spans={}), 2, busy=0.01, begin=100.0)
    assert found(barely).effective_requests_per_s == pytest.approx(2 / 0.1 * KEPT, rel=0.05)


def test_tokens_done_with_ease_are_no_limit_where_only_that_of_requests_was_seen() -> None:
    gauge = recall(CapacityStatus(value="10", tokens=None, source="Measured", penalty_percent=20))
    capacity = found(watch(gauge, 1))
    assert (capacity.requests_per_s, capacity.tokens_per_s) == (pytest.approx(10), None)
    assert found(watch(gauge, 20)).effective_requests_per_s == pytest.approx(20, rel=0.05)


def test_nothing_is_learnt_across_lives_from_gaps_or_from_a_stuck_engine() -> None:
    gauge = observe(Gauge(), [look(0, 5, 3)], AIM, 0.0)
    gauge = observe(gauge, [look(20, 5, 3, boot="b1")], AIM, 20.0)
    gauge = observe(gauge, [], AIM, 40.0)
    gauge = observe(gauge, [look(60, 5, 3, boot="b1")], AIM, 60.0)
    assert not found(gauge).measured
    assert not found(watch(Gauge(), 0, waiting=5)).measured


def test_a_status_says_it_and_a_restart_reads_it() -> None:
    gauge = replace(watch(Gauge(), 5, waiting=3), penalty_percent=20)
    status = tell(found(gauge), None)
    assert (status.source, status.penalty_percent) == ("Measured", 20)
    assert float(status.value) == pytest.approx(5 * KEPT / 0.8, rel=0.05)
    again = found(recall(status))
    assert again.effective_requests_per_s == pytest.approx(found(gauge).effective_requests_per_s, rel=0.01)
    assert again.measured
    assert tell(again, status) == status
    assert recall(tell(ASSUMED, None)) == recall(None) == Gauge()


def test_what_counts_is_what_is_known_now_then_the_status_then_the_prior() -> None:
    live, said = Capacity(1, 2, 3, measured=True), CapacityStatus(value="10", source="Measured", penalty_percent=20)
    assert capacity_of(live, LoraPoolStatus(capacity=said)) is live
    assert capacity_of(None, LoraPoolStatus(capacity=said)).effective_requests_per_s == 8
    assert capacity_of(None, LoraPoolStatus()) is ASSUMED


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ({}, False),
        ({"requests_per_s": 10.9}, False),
        ({"requests_per_s": 11.2}, True),
        ({"tokens_per_s": 190.0}, False),
        ({"tokens_per_s": 100.0}, True),
        ({"tokens_per_s": None}, True),
        ({"measured": False}, True),
        ({"penalty_percent": 22}, False),
        ({"penalty_percent": 30}, True),
        ({"penalty_percent": None}, True),
    ],
)
def test_a_status_moves_only_with_what_matters(change: dict, moves: bool) -> None:
    capacity = Capacity(10.0, 200.0, 20, measured=True)
    shown = tell(capacity, None)
    assert (tell(replace(capacity, **change), shown) != shown) is moves


def test_figures_without_a_penalty_are_compared_too() -> None:
    capacity = Capacity(0.0123456, None, None, measured=True)
    shown = tell(capacity, None)
    assert shown.value == "0.0123"
    assert tell(capacity, shown) is shown
    assert tell(replace(capacity, requests_per_s=1234567.0), shown).value == "1230000"


def steps(
    count: int, fixed: float = 0.005, per_sequence: float = 1e-4, per_rank: float = 1e-5, tied: bool = False
) -> StepsState:
    """Sums over steps of that cost and random width; `tied`: as many ranks as sequences, always."""
    rng = random.Random(1)
    sums = dict.fromkeys(StepsState.model_fields, 0.0)
    for _ in range(count):
        n = rng.randint(1, 64)
        r = 16 * n if tied else rng.randint(0, 64) * 16
        t = fixed + per_sequence * n + per_rank * r + rng.gauss(0, 1e-5)
        row = (1, t, 1, t, n, r, n * n, r * r, n * r, t * n, t * r)
        sums = {name: sums[name] + value for name, value in zip(sums, row, strict=True)}
    return StepsState(**{name: value if "seconds" in name else int(value) for name, value in sums.items()})


def test_the_cost_of_steps_is_found_from_their_sums() -> None:
    cost = fit_steps(add_steps([steps(600), steps(900)]))
    assert cost is not None
    assert cost.fixed == pytest.approx(0.005, rel=0.02)
    assert cost.per_sequence == pytest.approx(1e-4, rel=0.02)
    assert cost.per_rank == pytest.approx(1e-5, rel=0.02)
    assert cost.seconds_of(32, 512) == pytest.approx(0.005 + 0.0032 + 0.00512, rel=0.01)
    assert cost.penalty_percent == round(100 * 1e-5 * cost.rank_sum / cost.seconds)


def test_steps_that_tell_nothing_are_said_to() -> None:
    assert fit_steps(steps(LEAST_STEPS - 1)) is None
    assert fit_steps(steps(LEAST_STEPS, tied=True)) is None
    assert fit_steps(StepsState(decode_steps=1000, decode_seconds=10, sequences=1000, sequences_squared=1000)) is None


def test_the_penalty_of_adapters_goes_with_the_capacity() -> None:
    gauge = watch(Gauge(), 5, waiting=3)
    gauge = observe(gauge, [Effort("r9", "b0", 0, 0, 0, steps(600))], AIM, 500.0)
    capacity = found(gauge)
    assert capacity.penalty_percent is not None
    assert 20 < capacity.penalty_percent < 60
    assert capacity.effective_requests_per_s == pytest.approx(5 * KEPT, rel=0.05)


def test_a_look_is_read_from_an_engines_state() -> None:
    usage = [
        UsageState(tenant="t", adapter="a", gateway=g, requests=2, prompt_tokens=3, completion_tokens=4) for g in "xy"
    ]
    state = make_state(usage=usage, queue=7, steps=StepsState(steps=9))
    assert Effort.of("r", state) == Effort("r", "boot-1", 7, 4, 14, StepsState(steps=9))
    assert Effort.of("r", make_state()).steps == StepsState()


def test_the_span_is_as_long_as_said() -> None:
    assert not found(watch(Gauge(), 5, seconds=int(SUSTAINED_SECONDS), waiting=1)).measured
    assert found(watch(Gauge(), 5, seconds=int(SUSTAINED_SECONDS) + 1, waiting=1)).measured
