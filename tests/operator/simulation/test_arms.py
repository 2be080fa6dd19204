"""The arms that a day is compared with, on cases that can be counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from lorafleet_operator.simulation.arms import run_arm
from lorafleet_operator.simulation.measures import Sample
from lorafleet_operator.simulation.run import Loss
from tests.operator.simulation.test_run import SIZE, make_case


def samples(*gpus: int) -> list[Sample]:
    """Intervals of 60 s with so many GPUs."""
    return [Sample(60.0 * (place + 1), {"shared": count}, 0, 0, 0, 0) for place, count in enumerate(gpus)]


def test_with_room_for_all_hashing_is_cold_once_an_adapter() -> None:
    outcome = run_arm(make_case(), samples(3, 3, 3, 3, 3, 3, 3, 3, 3, 3), "hash")
    assert sum(outcome.cold) == outcome.cold[0] == 6
    assert outcome.requests == 3000
    assert outcome.cold_share == pytest.approx(6 / 3000)


def test_all_on_all_is_cold_once_an_adapter_and_replica_that_it_meets() -> None:
    outcome = run_arm(make_case(), samples(*[3] * 10), "all")
    assert 6 < sum(outcome.cold) <= 18


def test_a_small_budget_thrashes() -> None:
    case = make_case()
    tight = replace(case.profile, memory=replace(case.profile.memory, adapters=2 * SIZE))
    assert sum(run_arm(replace(case, profile=tight), samples(*[1] * 10), "hash").cold) > 500


def test_a_lost_replica_and_a_larger_fleet_begin_cold() -> None:
    case = make_case(losses=(Loss(at=200.0, place=0),))
    assert sum(run_arm(case, samples(*[1] * 10), "hash").cold) == 12
    assert sum(run_arm(make_case(), samples(*[2] * 5, *[3] * 5), "all").cold[5:]) > 0


def test_a_wait_is_a_queue_or_a_load() -> None:
    calm = run_arm(make_case(), samples(*[2] * 10), "all")
    busy = run_arm(make_case(rps=12.0), samples(*[1] * 10), "all")
    assert calm.wait_p99 < 1.0 < busy.wait_p99
    assert np.isfinite(busy.wait_p99)
