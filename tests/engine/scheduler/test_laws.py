"""Laws of the scheduler over random request sets: budgets hold, nothing leaks, everyone gets on, the oldest first."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_engine.memory.geometry import pages_for_tokens
from lorafleet_engine.memory.pages import Owner, PagePool
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.rotation import QUANTUM, Rotation
from lorafleet_engine.scheduler.scheduler import Scheduler
from lorafleet_engine.scheduler.sequence import Advance, Sequence, StepPlan

LIMITS = StepLimits(tokens=24, sequences=6, distinct_adapters=2, rank_sum=20, waiting=100)
LENGTH = 64
"""No sequence gets longer; the pools below always hold one of this length."""


def adapter(number: int, rank: int) -> Resident:
    return Resident(f"a{number}", rank, 0, (), tuple(range(100 * number + 1, 100 * number + 1 + rank)))


@dataclass
class Simulation:
    """Runs plans as a device would, checking every one of them."""

    scheduler: Scheduler
    pool: PagePool
    limits: StepLimits = LIMITS
    steps: int = 0
    live: list[Sequence] = field(default_factory=list)
    last_run: dict[str, int] = field(default_factory=dict)

    def submit(self, sequence: Sequence) -> None:
        assert self.scheduler.submit(sequence)
        self.live.append(sequence)

    def step(self) -> list[Advance]:
        plan = self.scheduler.plan()
        assert plan is not None
        self.check(plan)
        oldest = min(self.live, key=lambda sequence: sequence.arrival)
        before = oldest.computed
        advances = self.scheduler.commit(plan, [7] * sum(work.samples for work in plan.works))
        assert oldest.computed >= before or oldest in [advance.sequence for advance in advances if advance.finish]
        self.steps += 1
        for work in plan.works:
            self.last_run[work.sequence.request_id] = self.steps
        for advance in advances:
            if advance.finish is not None:
                self.live.remove(advance.sequence)
        self.check_pages()
        return advances

    def check(self, plan: StepPlan) -> None:
        sequences = [work.sequence for work in plan.works]
        assert len(set(map(id, sequences))) == len(sequences) <= self.limits.sequences
        assert 1 <= plan.tokens <= self.limits.tokens
        assert len(plan.adapters) <= self.limits.distinct_adapters
        assert plan.rank_sum <= self.limits.rank_sum
        assert set(map(id, plan.adapters)) == {id(s.adapter) for s in sequences if s.adapter is not None}
        for number, work in enumerate(plan.works):
            assert work.start == work.sequence.computed
            assert (work.count == 1) == (number < plan.decodes)
            assert work.samples == (work.start + work.count == len(work.sequence.tokens))
            assert len(work.sequence.pages) >= pages_for_tokens(work.start + work.count)

    def check_pages(self) -> None:
        held = [page for sequence in self.live for page in sequence.pages]
        assert len(set(held)) == len(held) == self.pool.held(Owner.KV)
        assert {id(s) for s in self.live} == {id(s) for s in (*self.scheduler.running, *self.scheduler.waiting)}


def simulation(pages: int, limits: StepLimits = LIMITS) -> Simulation:
    pool = PagePool(pages + 2, 2)
    return Simulation(Scheduler(limits, pool), pool, limits)


@st.composite
def request_sets(draw: st.DrawFn) -> list[Sequence]:
    adapters = [adapter(number, draw(st.integers(1, 20))) for number in range(draw(st.integers(0, 5)))]
    sequences = []
    for number in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, LENGTH - 1))
        answer = draw(st.integers(1, LENGTH - prompt))
        chosen = draw(st.sampled_from([None, *adapters]))
        sequences.append(Sequence(str(number), [1] * prompt, answer, adapter=chosen))
    return sequences


@settings(max_examples=60, deadline=None)
@given(request_sets(), st.integers(4, 30), st.data())
def test_everyone_finishes_within_budgets_and_nothing_leaks(
    requests: list[Sequence], pages: int, data: st.DataObject
) -> None:
    world = simulation(pages)
    arrivals = {number: data.draw(st.integers(0, 20)) for number in range(len(requests))}
    pending = dict(enumerate(requests))
    work = sum(len(request.tokens) + request.max_new for request in requests)
    for _ in range(40 * QUANTUM * len(requests) + 4 * work):
        for number in [n for n, at in arrivals.items() if at <= world.steps and n in pending]:
            world.submit(pending.pop(number))
        if world.live and data.draw(st.integers(0, 40)) == 0:
            victim = world.live.pop(data.draw(st.integers(0, len(world.live) - 1)))
            world.scheduler.remove(victim)
            assert victim.pages == []
            world.check_pages()
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


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.data())
def test_rotation_bound(adapters: int, cap: int, data: st.DataObject) -> None:
    """When the cap on adapters binds, every sequence runs within ceil(live / cap) x QUANTUM steps."""
    limits = StepLimits(tokens=64, sequences=20, distinct_adapters=cap, rank_sum=10_000)
    world = simulation(500, limits)
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


def test_rotation_by_rank_sum_reaches_everyone() -> None:
    limits = StepLimits(tokens=64, sequences=20, distinct_adapters=8, rank_sum=20)
    world = simulation(500, limits)
    for number, rank in enumerate((20, 4, 17, 3, 3, 20)):
        world.submit(Sequence(str(number), [1], 10_000, adapter=adapter(number, rank)))
    for _ in range(6 * QUANTUM):
        world.step()
    assert set(world.last_run) == {str(number) for number in range(6)}


def test_base_rows_run_in_every_step() -> None:
    limits = StepLimits(tokens=64, sequences=20, distinct_adapters=1, rank_sum=20)
    world = simulation(500, limits)
    world.submit(Sequence("base", [1], 100))
    for number in range(3):
        world.submit(Sequence(str(number), [1], 100, adapter=adapter(number, 8)))
    for _ in range(60):
        world.step()
        assert world.last_run["base"] == world.steps
