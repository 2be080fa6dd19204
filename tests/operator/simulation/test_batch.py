"""Continuous batching: what shares a step, what waits, what an engine counts."""

import random

import pytest

from lorafleet_contracts.forecast import Member
from lorafleet_operator.core.stepcost import fit_steps
from lorafleet_operator.simulation.batch import Answers, Asked, Batch, StepTime, step_time

STEP = StepTime(fixed=0.01, per_sequence=0.005, per_rank=0.001, most=3)


def asked(at: float, tokens: int = 10, adapter: str = "a", rank: int = 0) -> Asked:
    return Asked(("demo/t", adapter), 5, tokens, rank, at)


def serve(*requests: Asked, step: StepTime = STEP) -> Answers:
    answers = Answers()
    batch = Batch(step, answers)
    for each in requests:
        batch.advance(each.at)
        batch.add(each, 0.0)
    batch.finish()
    assert len(batch) == 0
    return answers


def test_alone_each_token_takes_a_step_of_one() -> None:
    assert serve(asked(0.0)).latencies == pytest.approx([10 * 0.015])


def test_two_at_once_take_longer_steps_until_one_ends() -> None:
    answers = serve(asked(0.0, 10), asked(0.0, 20))
    assert answers.latencies == pytest.approx([10 * 0.02, 10 * 0.02 + 10 * 0.015])
    assert answers.waits == [0.0, 0.0]


def test_who_comes_slows_down_who_is_there() -> None:
    # Four steps alone, six beside the other, who has four more by itself.
    answers = serve(asked(0.0, 10), asked(4 * 0.015, 10))
    assert answers.latencies == pytest.approx([4 * 0.015 + 6 * 0.02, 6 * 0.02 + 4 * 0.015])


def test_ranks_count_once_an_adapter_in_a_step() -> None:
    two = serve(asked(0.0, adapter="a", rank=8), asked(0.0, adapter="b", rank=8))
    one = serve(asked(0.0, adapter="a", rank=8), asked(0.0, adapter="a", rank=8))
    assert two.latencies == pytest.approx([10 * (0.02 + 0.016)] * 2)
    assert one.latencies == pytest.approx([10 * (0.02 + 0.008)] * 2)


def test_beyond_what_a_step_holds_requests_wait_in_order() -> None:
    answers = serve(*(asked(0.0, 10 * (1 + number)) for number in range(3)), asked(0.0), asked(0.0))
    assert answers.waits == pytest.approx([0.0, 0.0, 0.0, 10 * 0.025, 20 * 0.025])


def test_a_request_whose_adapter_comes_takes_no_step_meanwhile() -> None:
    answers = Answers()
    batch = Batch(STEP, answers)
    batch.add(asked(0.0), extra=1.0)
    assert (list(batch.advance(0.9)), len(batch), batch.waiting) == ([], 1, 0)
    batch.finish()
    assert answers.waits == [1.0]
    assert answers.latencies == pytest.approx([1.15])


def test_what_a_lost_replica_had_is_broken_off() -> None:
    answers = Answers()
    batch = Batch(STEP, answers)
    for _ in range(5):
        batch.add(asked(0.0), 0.0)
    batch.advance(0.1)
    batch.lose()
    assert (answers.broken, answers.latencies) == (5, [])


def test_the_operator_s_fit_of_the_counters_finds_the_law_of_the_steps() -> None:
    answers, step = Answers(), StepTime(0.01, 2e-4, 1e-5, most=32)
    batch, draws, now = Batch(step, answers), random.Random(1), 1_800_000_000.0
    for _ in range(2000):
        now += draws.expovariate(10.0)
        batch.advance(now)
        adapter = draws.randrange(20)
        batch.add(Asked(("demo/t", f"a{adapter}"), 5, draws.randrange(50, 150), (8, 64)[adapter % 2], now), 0.0)
    batch.advance(now)
    cost = fit_steps(batch.sums(now))
    assert cost is not None
    assert (cost.fixed, cost.per_sequence, cost.per_rank) == pytest.approx((0.01, 2e-4, 1e-5), rel=1e-4)
    assert len(answers.waits) == len(answers.latencies) + len(batch)


def test_a_full_replica_does_what_its_capacity_says() -> None:
    members = [Member(16, 0.5), Member(64, 0.3), Member(8, 0.2)]
    step = step_time(8.0, 10.0, 100.0, members)
    assert step.most == 16
    assert step.seconds_of(16, 0) == pytest.approx(16 / (10.0 * 100.0))
    expected = sum(each.rank * (1 - 2.718281828 ** (-16 * each.tokens_per_s)) for each in members)
    assert step.fixed + 16 * step.per_sequence + expected * step.per_rank == pytest.approx(16 / (8.0 * 100.0))
    assert step_time(8.0, 10.0, 100.0, []).per_rank == 0.0
