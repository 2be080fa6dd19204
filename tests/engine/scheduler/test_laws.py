"""Laws of the scheduler over random request sets: budgets hold, nothing leaks, everyone gets on, the oldest first."""

import zlib
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


STOP = 0


def token_at(sequence: Sequence, place: int) -> int:
    """What the model of these tests says at a place of a sequence, whoever runs beside it."""
    return zlib.crc32(f"{sequence.request_id}:{place}".encode()) % 37


@dataclass
class Simulation:
    """Runs plans as a device would, checking every one of them; `overlapped` commits each one step late."""

    scheduler: Scheduler
    pool: PagePool
    limits: StepLimits = LIMITS
    overlapped: bool = False
    steps: int = 0
    live: list[Sequence] = field(default_factory=list)
    last_run: dict[str, int] = field(default_factory=dict)
    sampled: list[int] = field(default_factory=list)
    flying: tuple[StepPlan, list[int]] | None = None

    def submit(self, sequence: Sequence) -> None:
        assert self.scheduler.submit(sequence)
        self.live.append(sequence)

    def step(self) -> list[Advance]:
        """Launch a step, if there is one, and commit it or the one before."""
        oldest = min(self.live, key=lambda sequence: sequence.arrival)
        before = oldest.computed
        plan = self.scheduler.plan()
        assert plan is not None or self.flying is not None
        launched = None if plan is None else (plan, self.run(plan))
        landing, self.flying = (self.flying, launched) if self.overlapped else (launched, None)
        advances = [] if landing is None else self.scheduler.commit(*landing)
        assert oldest.computed >= before or oldest in [advance.sequence for advance in advances if advance.finish]
        for advance in advances:
            assert advance.token == token_at(advance.sequence, len(advance.sequence.tokens) - 1)
            if advance.finish is not None:
                self.live.remove(advance.sequence)
        self.check_pages()
        return advances

    def run(self, plan: StepPlan) -> list[int]:
        """Check a plan and return what it samples."""
        self.check(plan)
        self.steps += 1
        for work in plan.works:
            self.last_run[work.sequence.request_id] = self.steps
            if work.source >= 0:
                assert work.start == len(work.sequence.tokens)
                assert self.sampled[work.source] == token_at(work.sequence, work.start)
            else:
                assert work.start + work.count <= len(work.sequence.tokens)
        self.sampled = [token_at(work.sequence, work.start + work.count) for work in plan.works if work.samples]
        return self.sampled

    def check(self, plan: StepPlan) -> None:
        sequences = [work.sequence for work in plan.works]
        assert len(set(map(id, sequences))) == len(sequences) <= self.limits.sequences
        assert 1 <= plan.tokens <= self.limits.tokens
        assert len(plan.adapters) <= self.limits.distinct_adapters
        assert plan.rank_sum <= self.limits.rank_sum
        assert set(map(id, plan.adapters)) == {id(s.adapter) for s in sequences if s.adapter is not None}
        for number, work in enumerate(plan.works):
            assert not work.sequence.ended
            assert work.start + work.count == work.sequence.computed
            assert work.sequence.generated + work.sequence.in_flight <= work.sequence.max_new
            assert (work.count == 1) == (number < plan.decodes)
            assert work.sequence.pending >= 1
            assert work.samples == (work.start + work.count >= len(work.sequence.tokens))
            assert len(work.sequence.pages) >= pages_for_tokens(work.start + work.count)

    def check_pages(self) -> None:
        held = [page for sequence in self.live for page in sequence.pages]
        assert len(set(held)) == len(held) == self.pool.held(Owner.KV)
        assert {id(s) for s in self.live} == {id(s) for s in (*self.scheduler.running, *self.scheduler.waiting)}


def simulation(pages: int, limits: StepLimits = LIMITS, overlapped: bool = False) -> Simulation:
    pool = PagePool(pages + 2, 2)
    return Simulation(Scheduler(limits, pool), pool, limits, overlapped)


def expected(sequence: Sequence) -> list[int]:
    """The answer that a sequence must get, whoever runs beside it."""
    answer: list[int] = []
    while len(answer) < sequence.max_new and (not answer or answer[-1] not in sequence.stops):
        answer.append(token_at(sequence, sequence.prompt_length + len(answer)))
    return answer


@st.composite
def request_sets(draw: st.DrawFn) -> list[Sequence]:
    adapters = [adapter(number, draw(st.integers(1, 20))) for number in range(draw(st.integers(0, 5)))]
    sequences = []
    for number in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, LENGTH - 1))
        answer = draw(st.integers(1, LENGTH - prompt))
        chosen = draw(st.sampled_from([None, *adapters]))
        stops = frozenset({STOP} if draw(st.booleans()) else ())
        sequences.append(Sequence(str(number), [1] * prompt, answer, stops, adapter=chosen))
    return sequences


@settings(max_examples=60, deadline=None)
@given(request_sets(), st.integers(4, 30), st.booleans(), st.data())
def test_everyone_finishes_within_budgets_and_nothing_leaks(
    requests: list[Sequence], pages: int, overlapped: bool, data: st.DataObject
) -> None:
    world = simulation(pages, overlapped=overlapped)
    removed = set()
    arrivals = {number: data.draw(st.integers(0, 20)) for number in range(len(requests))}
    pending = dict(enumerate(requests))
    work = sum(len(request.tokens) + request.max_new for request in requests)
    for _ in range(40 * QUANTUM * len(requests) + 4 * work):
        for number in [n for n, at in arrivals.items() if at <= world.steps and n in pending]:
            world.submit(pending.pop(number))
        if world.live and data.draw(st.integers(0, 40)) == 0:
            victim = world.live.pop(data.draw(st.integers(0, len(world.live) - 1)))
            world.scheduler.remove(victim)
            removed.add(victim.request_id)
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
    for request in requests:
        if request.request_id not in removed:
            assert request.tokens[request.prompt_length :] == expected(request)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.booleans(), st.data())
def test_rotation_bound(adapters: int, cap: int, overlapped: bool, data: st.DataObject) -> None:
    """When the cap on adapters binds, every sequence runs within ceil(live / cap) x QUANTUM steps."""
    limits = StepLimits(tokens=64, sequences=20, distinct_adapters=cap, rank_sum=10_000)
    world = simulation(500, limits, overlapped)
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
