"""How large a set is, and that it neither flutters nor shrinks too far."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafleet_operator.core.capability import ASSUMED, Capacity
from lorafleet_operator.core.popularity import Pace, Rates
from lorafleet_operator.core.sizing import Bounds, Needs, SizingCase, remember, shift, size
from tests.support.fleet import NOW

BASE = Capacity(10.0, None, 20, measured=True)
STABLE_SECONDS = 300.0
LONG_AGO = Needs(NOW - 10 * STABLE_SECONDS)


def case(requests: float = 0.0, tokens: float = 0.0, **changes: object) -> SizingCase:
    """A set that has been watched for long, of replicas that do 8 requests/s beside their adapters."""
    fields: dict = {
        "load": Rates(Pace(fast=requests), Pace(fast=tokens)),
        "waiting": 0,
        "capacity": BASE,
        "bounds": Bounds(1, 100, 1, STABLE_SECONDS),
        "present": 1,
        "resident": 0,
        "needs": LONG_AGO,
        "now": NOW,
    }
    return SizingCase(**{**fields, **changes})


def test_the_source_documents_example() -> None:
    sizing = size(case(30))
    assert sizing.replicas == 5
    assert sizing.reason == "5 for 30 requests/s at 8 each (measured), 1 to lose; from 1 to 100"
    assert size(case(30, capacity=ASSUMED)).replicas == 5
    assert "(assumed)" in size(case(30, capacity=ASSUMED)).reason


@pytest.mark.parametrize(("requests", "least", "most", "expected"), [(0, 1, 9, 1), (0, 3, 9, 3), (90, 1, 9, 9)])
def test_the_owners_bounds_hold(requests: float, least: int, most: int, expected: int) -> None:
    assert size(case(requests, bounds=Bounds(least, most, 1, STABLE_SECONDS), present=None)).replicas == expected


def test_any_load_at_all_may_lose_a_replica() -> None:
    assert size(case(0.01)).replicas == 2
    assert size(case(0.01, bounds=Bounds(1, 9, 0, STABLE_SECONDS))).replicas == 1
    assert size(case(0.01, bounds=Bounds(1, 9, 3, STABLE_SECONDS))).replicas == 4


def test_tokens_count_where_they_ask_for_more() -> None:
    both = replace(BASE, tokens_per_s=1000.0)
    assert size(case(8, 800, capacity=both)).replicas == 2
    sizing = size(case(8, 2400, capacity=both))
    assert (sizing.replicas, "2400 tokens/s at 800 each" in sizing.reason) == (4, True)


def test_next_to_nothing_is_nothing() -> None:
    sizing = size(case(0.001, present=None))
    assert (sizing.replicas, sizing.reason) == (1, "1 for no requests, 1 to lose; from 1 to 100")


def test_requests_that_wait_are_demand() -> None:
    assert size(case(8, waiting=0)).replicas == 2
    assert size(case(8, waiting=240)).replicas == 3


def test_the_headroom_is_used_before_the_set_grows() -> None:
    assert size(case(33, present=5)).replicas == 5
    assert size(case(34, present=5)).replicas == 6
    assert size(case(33, present=4)).replicas == 6, "not while it grows anyway"


def test_it_grows_at_once_and_shrinks_when_fewer_were_enough_for_long() -> None:
    needs = remember(LONG_AGO, size(case(30, present=5)).need, NOW)
    for after in (1.0, 100.0, STABLE_SECONDS - 1):
        sizing = size(case(1, present=5, needs=needs, now=NOW + after))
        assert (sizing.replicas, sizing.due) == (5, NOW + STABLE_SECONDS)
        needs = remember(needs, sizing.need, NOW + after)
    assert size(case(1, present=5, needs=needs, now=NOW + STABLE_SECONDS + 1)).replicas == 2
    assert size(case(50, present=5, needs=needs, now=NOW + 1)).replicas == 8


def test_it_shrinks_to_the_largest_of_the_window() -> None:
    needs = remember(remember(LONG_AGO, 6, NOW - 250), 4, NOW - 100)
    assert size(case(1, present=6, needs=needs)).replicas == 6
    assert size(case(1, present=6, needs=needs, now=NOW + 60)).replicas == 4


@pytest.mark.parametrize("needs", [None, Needs(NOW - 10)])
def test_a_new_process_leaves_the_size_until_it_knows_better(needs: Needs | None) -> None:
    sizing = size(case(0, present=7, needs=needs))
    assert sizing.replicas == 7
    assert sizing.due == (needs.began if needs else NOW) + STABLE_SECONDS
    assert size(case(0, present=7, needs=needs, bounds=Bounds(1, 4, 1, STABLE_SECONDS))).replicas == 4, (
        "but for the owner's word"
    )
    assert size(case(0, present=1, needs=needs, bounds=Bounds(2, 4, 1, STABLE_SECONDS))).replicas == 2


def test_however_short_the_window_a_new_process_learns_the_load_first() -> None:
    short = Bounds(1, 9, 1, 5.0)
    assert size(case(0, present=7, needs=Needs(NOW - 80), bounds=short)).replicas == 7
    assert size(case(0, present=7, needs=Needs(NOW - 91), bounds=short)).replicas == 1


def test_it_never_shrinks_below_what_adapters_need_nor_grows_for_them() -> None:
    sizing = size(case(0, present=5, resident=3))
    assert (sizing.replicas, sizing.reason) == (3, "3 hold what must stay on a GPU")
    assert size(case(0, present=2, resident=3)).replicas == 2


@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0.1, 200)), max_size=40), st.integers(1, 5), st.integers(0, 3))
def test_laws_of_a_days_run(steps: list[tuple[float, float]], least: int, redundancy: int) -> None:
    present, needs, now, bounds = least, LONG_AGO, NOW, Bounds(least, least + 6, redundancy, STABLE_SECONDS)
    history: list[tuple[float, int]] = []
    for requests, seconds in steps:
        now += seconds
        sizing = size(case(requests / 4, present=present, needs=needs, bounds=bounds, now=now))
        needs = remember(needs, sizing.need, now)
        history.append((now, sizing.need))
        assert bounds.least <= sizing.replicas <= bounds.most
        assert sizing.replicas >= sizing.need
        window = [need for at, need in history if at > now - STABLE_SECONDS]
        assert sizing.replicas == max(window), "what the window asked for at most, no more and no less"
        assert len(needs.peaks) <= bounds.most
        if sizing.replicas < present:
            assert all(at <= now - STABLE_SECONDS for at, need in history if need >= present)
        present = sizing.replicas


def test_needs_move_with_the_clock() -> None:
    assert shift(Needs(1.0, ((2.0, 3),)), 10.0) == Needs(11.0, ((12.0, 3),))
