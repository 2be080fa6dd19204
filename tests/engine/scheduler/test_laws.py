"""Laws of the scheduler over random request sets: budgets hold, nothing leaks, everyone gets on, the oldest first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.rotation import QUANTUM, Rotation
from lorafleet_engine.scheduler.sequence import Sequence
from tests.engine.support.simulation import STOP, adapter, expected, simulation
from tests.support.cases import cases

LENGTH = 64
"""No sequence gets longer; the pools below always hold one of this length."""


@st.composite
def request_sets(draw: st.DrawFn) -> list[Sequence]:
    tenants = "abc"[: draw(st.integers(1, 3))]
    adapters = [adapter(number, draw(st.integers(1, 20))) for number in range(draw(st.integers(0, 5)))]
    sequences = []
    for number in range(draw(st.integers(1, 12))):
        prompt = [draw(st.integers(1, 2))] * draw(st.integers(1, LENGTH - 1))
        answer = draw(st.integers(1, LENGTH - len(prompt)))
        chosen = draw(st.sampled_from([None, *adapters]))
        tenant = draw(st.sampled_from(tenants))
        stops = frozenset({STOP} if draw(st.booleans()) else ())
        sequences.append(Sequence(str(number), prompt, answer, stops, adapter=chosen, tenant=tenant))
    return sequences


@settings(max_examples=cases(60), deadline=None)
@given(request_sets(), st.integers(4, 30), st.booleans(), st.sampled_from(["", "tenant", "shared"]), st.data())
def test_everyone_finishes_within_budgets_and_nothing_leaks(
    requests: list[Sequence], pages: int, overlapped: bool, prefix: str, data: st.DataObject
) -> None:
    world = simulation(pages, overlapped=overlapped, prefix=prefix)
    removed = set()
    arrivals = {number: data.draw(st.integers(0, 20)) for number in range(len(requests))}
    pending = dict(enumerate(requests))
    work = sum(len(request.tokens) + request.max_new for request in requests)
    for _ in range(40 * QUANTUM * len(requests) + 4 * work):
        for number in [n for n, at in arrivals.items() if at <= world.steps and n in pending]:
            world.submit(pending.pop(number))
        if world.live and data.draw(st.integers(0, 40)) == 0:
            victim = data.draw(st.sampled_from(world.live))
            world.remove(victim)
            removed.add(victim.request_id)
        if world.live:
            world.step()
        elif pending:
            world.steps += 1
        else:
            break
    assert not world.live
    assert not pending
    assert world.pool.free == world.pool.total
    assert world.scheduler.plan() is None
    for request in requests:
        if request.request_id not in removed:
            assert request.tokens[request.prompt_length :] == expected(request)


@settings(max_examples=cases(25), deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.booleans(), st.data())
def test_rotation_bound(adapters: int, cap: int, overlapped: bool, data: st.DataObject) -> None:
    """When the cap on adapters binds, every sequence runs within ceil(live / cap) x QUANTUM steps."""
    limits = StepLimits(tokens=64, sequences=20, distinct_adapters=cap, rank_sum=10_000)
    world = simulation(500, limits, overlapped=overlapped)
    for number in range(adapters):
        shared = adapter(number, 8)
        for copy in range(data.draw(st.integers(1, 2))):
            lengths = data.draw(st.sampled_from([3, 40, 10_000]))
            world.submit(Sequence(f"{number}/{copy}", [1], lengths, adapter=shared))
    for _ in range(200):
        live = {sequence.adapter.owner for sequence in world.live if sequence.adapter is not None}
        if not live:
            break
        world.step()
        bound = -(-adapters // cap) * QUANTUM
        for sequence in world.live:
            assert world.steps - world.last_run.get(sequence.request_id, 0) <= bound


def test_who_would_fill_a_gap_at_the_turn_keeps_its_place() -> None:
    """A sequence ends on the last step of its turn: the next in the ring must run now, not go to the back unserved."""
    rotation = Rotation(2, 1000)
    live = dict.fromkeys(range(5), 8)
    for _ in range(QUANTUM):
        assert rotation.select(live) == {0, 1}
    del live[1]
    assert rotation.select(live) == {2, 3}
    for _ in range(QUANTUM - 1):
        rotation.select(live)
    assert 4 in rotation.select(live)


@pytest.mark.heavy
@settings(max_examples=cases(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 64), st.sampled_from([3, 40, 10_000])), min_size=1, max_size=12),
    st.integers(1, 8),
    st.booleans(),
)
def test_rotation_bound_with_ranks(adapters: list[tuple[int, int]], cap: int, overlapped: bool) -> None:
    """Ranks that differ: everyone runs within (ceil(live / cap) + ceil(2 x ranks / rank sum)) x QUANTUM steps."""
    limits = StepLimits(tokens=64, sequences=20, distinct_adapters=cap, rank_sum=64)
    world = simulation(700, limits, overlapped=overlapped)
    for number, (rank, length) in enumerate(adapters):
        world.submit(Sequence(str(number), [1], length, adapter=adapter(number, rank)))
    turns = -(-len(adapters) // cap) + -(-2 * sum(rank for rank, _ in adapters) // 64)
    for _ in range(min(4 * turns * QUANTUM, 600)):
        if not world.live:
            break
        world.step()
        for sequence in world.live:
            assert world.steps - world.last_run.get(sequence.request_id, 0) <= turns * QUANTUM


def test_base_rows_run_in_every_step() -> None:
    limits = StepLimits(tokens=64, sequences=20, distinct_adapters=1, rank_sum=20)
    world = simulation(500, limits)
    world.submit(Sequence("base", [1], 100))
    for number in range(3):
        world.submit(Sequence(str(number), [1], 100, adapter=adapter(number, 8)))
    for _ in range(60):
        world.step()
        assert world.last_run["base"] == world.steps
