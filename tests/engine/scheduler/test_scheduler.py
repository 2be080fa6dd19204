"""The scheduler's decisions, one at a time."""

import pytest

from lorafleet_engine.memory.pages import PagePool
from lorafleet_engine.memory.prefix import PrefixCache
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.scheduler import Scheduler
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan


def scheduler(pages: int = 100, **limits: int) -> tuple[Scheduler, PagePool]:
    pool = PagePool(pages + 2, 2)
    return Scheduler(StepLimits(**{"tokens": 32, "sequences": 4, **limits}), pool), pool


def sequence(name: str, prompt: int, answer: int = 100) -> Sequence:
    return Sequence(name, [1] * prompt, answer, stops=frozenset({2}))


def shape(plan: StepPlan | None) -> list[tuple[str, int, int, bool]]:
    assert plan is not None
    return [(work.sequence.request_id, work.start, work.count, work.samples) for work in plan.works]


def run(scheduler: Scheduler, token: int = 7) -> list[tuple[str, int, int, bool]]:
    plan = scheduler.plan()
    assert plan is not None
    seen = shape(plan)
    scheduler.commit(plan, [token] * sum(work.samples for work in plan.works))
    return seen


def test_long_prompt_is_chunked_beside_decodes() -> None:
    made, _ = scheduler()
    made.submit(sequence("short", 3))
    assert run(made) == [("short", 0, 3, True)]
    made.submit(sequence("long", 70))
    assert run(made) == [("short", 3, 1, True), ("long", 0, 31, False)]
    assert run(made) == [("short", 4, 1, True), ("long", 31, 31, False)]
    assert run(made) == [("short", 5, 1, True), ("long", 62, 8, True)]
    assert run(made) == [("short", 6, 1, True), ("long", 70, 1, True)]


def test_prompts_share_a_step_in_order_of_arrival() -> None:
    made, _ = scheduler()
    for name in "abc":
        made.submit(sequence(name, 20))
    assert run(made) == [("a", 0, 20, True), ("b", 0, 12, False)]
    assert run(made) == [("a", 20, 1, True), ("b", 12, 8, True), ("c", 0, 20, True)]


def test_batch_is_bounded_and_the_queue_moves_up() -> None:
    made, _ = scheduler(sequences=2)
    for name in "abc":
        made.submit(sequence(name, 2, answer=2))
    assert [name for name, *_ in run(made)] == ["a", "b"]
    assert [name for name, *_ in run(made)] == ["a", "b"]
    assert [name for name, *_ in run(made)] == ["c"]


def test_full_queue_refuses() -> None:
    made, _ = scheduler(waiting=1)
    assert made.submit(sequence("a", 2))
    assert not made.submit(sequence("b", 2))


def test_stop_token_and_length_end_a_sequence() -> None:
    made, pool = scheduler()
    made.submit(sequence("stopped", 3))
    made.submit(sequence("cut", 3, answer=1))
    plan = made.plan()
    assert plan is not None
    advances = made.commit(plan, [2, 7])
    assert [(advance.token, advance.finish) for advance in advances] == [(2, "stop"), (7, "length")]
    assert made.plan() is None
    assert pool.free == pool.total


def test_token_that_could_not_be_drawn_ends_in_error() -> None:
    made, pool = scheduler()
    made.submit(sequence("a", 3))
    plan = made.plan()
    assert plan is not None
    (advance,) = made.commit(plan, [None])
    assert (advance.token, advance.finish, advance.sequence.generated) == (None, "error", 0)
    assert pool.free == pool.total


def test_a_step_is_planned_before_the_last_one_is_committed() -> None:
    made, pool = scheduler()
    made.submit(sequence("a", 3, answer=2))
    made.submit(sequence("b", 3, answer=9))
    first = made.plan()
    second = made.plan()
    assert shape(second) == [("a", 3, 1, True), ("b", 3, 1, True)]
    assert first is not None
    assert second is not None
    assert [work.source for work in second.works] == [0, 1]
    assert [advance.finish for advance in made.commit(first, [7, 2])] == [None, "stop"]
    assert made.plan() is None, "the one has all its tokens in flight, the other has ended"
    (last,) = made.commit(second, [7, 7])
    assert (last.row, last.sequence.request_id, last.finish) == (0, "a", "length")
    assert last.sequence.tokens == [1, 1, 1, 7, 7]
    assert pool.free == pool.total


def test_preempted_in_flight_waits_for_its_late_token() -> None:
    made, _ = scheduler()
    made.submit(sequence("a", 3))
    plan = made.plan()
    assert plan is not None
    made.make_room(100)
    assert made.plan() is None
    made.commit(plan, [7])
    assert run(made) == [("a", 0, 4, True)]


def test_youngest_gives_up_its_pages_and_is_computed_anew() -> None:
    made, pool = scheduler(pages=4)
    made.submit(sequence("old", 30))
    made.submit(sequence("young", 10))
    run(made)
    run(made)
    assert pool.free == 1
    for _ in range(17):
        run(made)
    assert made.preemptions == 0
    for _ in range(16):
        run(made)
    assert made.preemptions == 1
    assert [held.request_id for held in made.waiting] == ["young"]
    young = made.waiting[0]
    assert (young.computed, young.pages) == (0, [])
    made.remove(made.running[0])
    answered = young.generated
    assert answered > 0
    assert run(made) == [("young", 0, 10 + answered, True)]


def test_queue_is_not_jumped_when_pages_are_short() -> None:
    made, _ = scheduler(pages=6)
    made.submit(sequence("first", 60))
    run(made)
    made.submit(sequence("large", 60))
    made.submit(sequence("small", 2))
    run(made)
    assert [held.request_id for held in made.waiting] == ["large", "small"]


def test_pages_held_by_older_sequences_that_have_no_turn() -> None:
    """The old one holds the pages but its adapter rotates out; the young one cannot grow and makes way."""
    made, pool = scheduler(pages=4, distinct_adapters=1)
    old, young = sequence("old", 20, answer=40), sequence("young", 14, answer=40)
    old.adapter, young.adapter = (Resident(name, 4, 0, (), (1 + at,)) for at, name in enumerate("ab"))
    made.submit(old)
    run(made)
    made.submit(young)
    assert [run(made)[0][0] for _ in range(16)] == ["old"] * 16
    assert [run(made)[0][0] for _ in range(3)] == ["young"] * 3
    assert (len(old.pages), len(young.pages), pool.free) == (3, 1, 0)
    assert [run(made)[0][0] for _ in range(23)] == ["old"] * 23
    assert made.preemptions == 1
    assert run(made) == [("young", 0, 17, True)]


def test_make_room_preempts_the_youngest_first() -> None:
    made, pool = scheduler(pages=6)
    for name in "abc":
        made.submit(sequence(name, 10))
    run(made)
    run(made)
    assert pool.free == 3
    assert made.make_room(4)
    assert [held.request_id for held in made.waiting] == ["c"]
    assert made.make_room(6)
    assert [held.request_id for held in made.waiting] == ["a", "b", "c"]
    assert not made.make_room(7)


def test_limits_must_leave_room_for_prompts() -> None:
    with pytest.raises(ValueError, match="must exceed"):
        scheduler(tokens=4, sequences=4)


def test_a_step_of_a_former_stay_says_nothing_of_todays_pages() -> None:
    """Sent back and readmitted while a step was in flight: that step filled other pages than it has now."""
    pool = PagePool(102, 2)
    prefix = PrefixCache(pool)
    made = Scheduler(StepLimits(tokens=24, sequences=4), pool, prefix=prefix)
    made.submit(sequence("a", 60))
    assert run(made) == [("a", 0, 24, False)]
    flying = made.plan()
    assert shape(flying) == [("a", 24, 24, False)]
    assert made.make_room(100)
    second = made.plan()
    assert shape(second) == [("a", 16, 24, False)], "its first block was found"
    assert flying is not None
    assert second is not None
    made.commit(flying, [])
    assert len(prefix) == 1
    made.commit(second, [])
    assert len(prefix) == 2
