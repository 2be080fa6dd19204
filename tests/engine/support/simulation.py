"""Runs a scheduler's plans as a device would, in ints: what every page holds is known and checked at every read."""

import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.memory.geometry import pages_for_tokens
from lorafleet_engine.memory.pages import Owner, PagePool
from lorafleet_engine.memory.prefix import PrefixCache
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.scheduler import Scheduler
from lorafleet_engine.scheduler.sequence import Advance, Sequence, StepPlan, Work

LIMITS = StepLimits(tokens=24, sequences=6, distinct_adapters=2, rank_sum=20, waiting=100)
STOP = 0


def adapter(number: int, rank: int) -> Resident:
    return Resident(f"a{number}", rank, 0, (), tuple(range(100 * number + 1, 100 * number + 1 + rank)))


def token_at(sequence: Sequence, place: int) -> int:
    """What the model of these tests says at a place of a sequence, whoever runs beside it."""
    return zlib.crc32(f"{sequence.request_id}:{place}".encode()) % 37


def expected(sequence: Sequence) -> list[int]:
    """The answer that a sequence must get, whoever runs beside it."""
    answer: list[int] = []
    while len(answer) < sequence.max_new and (not answer or answer[-1] not in sequence.stops):
        answer.append(token_at(sequence, sequence.prompt_length + len(answer)))
    return answer


@dataclass
class Simulation:
    """Checks every plan; `overlapped` commits each one step late. `memory` says what each place of a page holds: whose
    keys and values (version and tenant) of which tokens, as the number of that text in `texts`, where it stands by the
    number of all but its last token and that token. `prefixes` are the numbers of a sequence's texts by length."""

    scheduler: Scheduler
    pool: PagePool
    limits: StepLimits = LIMITS
    overlapped: bool = False
    shared: bool = False
    steps: int = 0
    live: list[Sequence] = field(default_factory=list)
    last_run: dict[str, int] = field(default_factory=dict)
    stays: dict[str, tuple[int, int]] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    memory: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * KV_BLOCK_TOKENS))
    texts: dict[tuple[object, object], int] = field(default_factory=dict)
    prefixes: dict[str, list[int]] = field(default_factory=dict)
    sampled: list[int] = field(default_factory=list)
    flying: tuple[StepPlan, list[int]] | None = None

    def submit(self, sequence: Sequence) -> None:
        assert self.scheduler.submit(sequence)
        self.live.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        self.live.remove(sequence)
        self.scheduler.remove(sequence)
        assert sequence.pages == []
        self.check_pages()

    def step(self) -> list[Advance]:
        """Launch a step, if there is one, and commit it or the one before."""
        oldest = min(self.live, key=lambda sequence: sequence.arrival)
        alone = len({sequence.tenant for sequence in self.live}) == 1
        before = oldest.computed
        plan = self.scheduler.plan()
        assert plan is not None or self.flying is not None
        launched = None if plan is None else (plan, self.run(plan))
        landing, self.flying = (self.flying, launched) if self.overlapped else (launched, None)
        advances = [] if landing is None else self.scheduler.commit(*landing)
        ended = [advance.sequence for advance in advances if advance.finish]
        assert not alone or oldest.computed >= before or oldest in ended
        for advance in advances:
            assert advance.token == token_at(advance.sequence, len(advance.sequence.tokens) - 1)
        self.live = [sequence for sequence in self.live if sequence not in ended]
        self.check_pages()
        return advances

    def run(self, plan: StepPlan) -> list[int]:
        """Check a plan and return what it samples."""
        self.check(plan)
        self.steps += 1
        for work in plan.works:
            self.last_run[work.sequence.request_id] = self.steps
            self.serve(work)
            if work.source >= 0:
                assert work.start == len(work.sequence.tokens)
                assert self.sampled[work.source] == token_at(work.sequence, work.start)
            else:
                assert work.start + work.count <= len(work.sequence.tokens)
        for work in plan.works:
            self.write(work.sequence, work.start, work.start + work.count)
        for work in plan.works:
            self.read(work.sequence, work.start + work.count)
        self.sampled = [token_at(work.sequence, work.start + work.count) for work in plan.works if work.samples]
        return self.sampled

    def serve(self, work: Work) -> None:
        """Count what a tenant gets: tokens it generates, and others computed (its prompt; all of a preempted one)."""
        stay, length = self.stays.get(work.sequence.request_id, (0, 0))
        if stay != work.stay:
            length = max(len(work.sequence.tokens), work.start + 1)
            self.stays[work.sequence.request_id] = work.stay, length
        self.served[work.sequence.tenant] += max(0, min(work.start + work.count, length) - work.start) + work.samples

    def charged(self, tenant: str) -> int:
        """What a tenant got, and what is admitted for it but not yet computed."""
        running = [sequence for sequence in self.scheduler.running if sequence.tenant == tenant]
        return self.served[tenant] + sum(map(self.owed, running))

    def owed(self, sequence: Sequence) -> int:
        stay, length = self.stays.get(sequence.request_id, (0, 0))
        return max(0, length - sequence.computed) if stay == sequence.stay else sequence.pending

    def write(self, sequence: Sequence, start: int, end: int) -> None:
        texts = self.texts_of(sequence, end)
        for place in range(start, end):
            self.memory[sequence.pages[place // KV_BLOCK_TOKENS]][place % KV_BLOCK_TOKENS] = texts[place + 1]

    def read(self, sequence: Sequence, end: int) -> None:
        held = [text for page in sequence.pages for text in self.memory[page]]
        assert held[:end] == self.texts_of(sequence, end)[1 : end + 1]

    def texts_of(self, sequence: Sequence, end: int) -> list[int]:
        """Numbers of the sequence's first 0 to `end` tokens and maybe more, those in flight too."""
        known = self.prefixes.get(sequence.request_id)
        if known is None:
            whose = "" if self.shared else sequence.tenant
            known = self.prefixes[sequence.request_id] = [self.number_of(version(sequence), whose)]
        for place in range(len(known) - 1, end):
            token = sequence.tokens[place] if place < len(sequence.tokens) else token_at(sequence, place)
            known.append(self.number_of(known[-1], token))
        return known

    def number_of(self, before: object, last: object) -> int:
        return self.texts.setdefault((before, last), len(self.texts) + 1)

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
        """Nothing is lost, and only full blocks that are computed are in several hands."""
        holders = Counter(page for sequence in self.live for page in sequence.pages)
        assert len(holders) == self.pool.held(Owner.KV)
        for sequence in self.live:
            assert len(set(sequence.pages)) == len(sequence.pages)
            for block, page in enumerate(sequence.pages):
                if holders[page] > 1:
                    assert (block + 1) * KV_BLOCK_TOKENS <= min(sequence.computed, len(sequence.tokens) - 1)
        assert {id(s) for s in self.live} == {id(s) for s in (*self.scheduler.running, *self.scheduler.waiting)}
        assert all(not sequence.pages for sequence in self.scheduler.waiting)


def version(sequence: Sequence) -> str:
    return "" if sequence.adapter is None else sequence.adapter.key


def simulation(
    pages: int,
    limits: StepLimits = LIMITS,
    *,
    overlapped: bool = False,
    prefix: str = "",
    weights: dict[str, float] | None = None,
) -> Simulation:
    """A world with a prefix cache or none: `prefix` is "", "tenant" or "shared"."""
    pool = PagePool(pages + 2, 2)
    cache = PrefixCache(pool, shared=prefix == "shared") if prefix else None
    scheduler = Scheduler(limits, pool, prefix=cache, weights=weights)
    return Simulation(scheduler, pool, limits, overlapped, prefix == "shared")
