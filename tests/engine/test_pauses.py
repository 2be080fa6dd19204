"""When the loop's process collects garbage."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from lorafleet_engine.pauses import BUSY_S, IDLE_S, Collector, avoid_pauses


class Node:
    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def automatic() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def cycle() -> "weakref.ref[Node]":
    return weakref.ref(Node())


def test_a_loop_collects_when_it_is_idle_and_seldom_when_it_is_not() -> None:
    now = 0.0
    avoid_pauses()
    collector = Collector(lambda: now)
    left = cycle()
    now = IDLE_S - 1
    collector.rest(idle=True)
    assert left() is not None, "too early"
    now = BUSY_S - 1
    collector.rest(idle=False)
    assert left() is not None, "requests are running"
    collector.rest(idle=True)
    assert left() is None
    left = cycle()
    now += BUSY_S
    collector.rest(idle=False)
    assert left() is None, "it is never idle"


def test_nothing_is_collected_by_itself_once_pauses_are_avoided() -> None:
    avoid_pauses()
    left = cycle()
    kept = [[number] for number in range(200_000)]
    assert left() is not None
    assert gc.get_freeze_count() > 0
    assert len(kept) == 200_000


def test_a_loop_collects_nothing_where_the_interpreter_does_by_itself() -> None:
    now = 0.0
    collector = Collector(lambda: now)
    before = gc.get_stats()[2]["collections"]
    now = 1e6
    collector.rest(idle=True)
    assert gc.get_stats()[2]["collections"] == before
