"""Continuous batching: prompts in chunks and single decode tokens share each step's budget.

Used by loop.py and bench/: submit, then plan -> run -> commit, step by step. The next step may be planned before the
last one is committed (never two ahead): a plan promises its tokens, the commit fills them in. Who is admitted and who
makes way is batch.py's. Pages are free at once even if a step in flight still uses them: the device runs steps in the
order in which they were planned.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.memory.pages import PagePool
from lorafleet_engine.memory.prefix import PrefixCache
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import FinishReason, StepLimits
from lorafleet_engine.scheduler.batch import Batch
from lorafleet_engine.scheduler.fairness import Tenant, Tenants, share_out
from lorafleet_engine.scheduler.rotation import Rotation
from lorafleet_engine.scheduler.sequence import Advance, Sequence, StepPlan, Work

CALM_STEPS = 64
"""Nobody waited for so many steps: tenants do not compete any more."""


class Scheduler:
    """Holds the live sequences: `waiting` for their first page, and `running`, which hold pages or get them next.

    `weights` are the tenants' shares (1 for one that is not named); without `prefix` nothing is shared.
    """

    def __init__(
        self,
        limits: StepLimits,
        pool: PagePool,
        *,
        prefix: PrefixCache | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        if limits.tokens <= limits.sequences:
            raise ValueError("limits.tokens must exceed limits.sequences, or no prompt could run beside full decodes")
        self._limits = limits
        self._prefix = prefix
        self._rotation = Rotation(limits.distinct_adapters, limits.rank_sum)
        self._tenants = Tenants(weights or {}, limits.tokens, min(limits.contended, limits.tokens))
        self._batch = Batch(limits, pool, self._tenants, prefix)
        self._arrivals = 0
        self._calm = CALM_STEPS

    @property
    def running(self) -> list[Sequence]:
        """The admitted sequences, in order of arrival."""
        return self._batch.running

    @property
    def waiting(self) -> list[Sequence]:
        """The queued sequences of all tenants, in order of arrival."""
        return self._tenants.waiting()

    @property
    def queued(self) -> int:
        """How many sequences wait."""
        return self._tenants.queued

    @property
    def contended(self) -> bool:
        """Whether several tenants have requests and somebody has waited in a queue lately: steps are short then."""
        return self._calm < CALM_STEPS and len(self._tenants) > 1

    @property
    def preemptions(self) -> int:
        """How often a sequence lost its pages before its end."""
        return self._batch.preemptions

    def submit(self, sequence: Sequence) -> bool:
        """Queue a sequence; False if the queue is full. Its prompt and answer must fit into the pool's KV floor."""
        if self._tenants.queued >= self._limits.waiting:
            return False
        sequence.arrival = self._arrivals
        self._arrivals += 1
        if self._prefix is not None:
            version = "" if sequence.adapter is None else sequence.adapter.key
            sequence.chain = self._prefix.chain(version, sequence.tenant)
        self._tenants.arrive(sequence)
        return True

    def remove(self, sequence: Sequence) -> None:
        """End a live sequence now: its pages are free afterwards, and what is in flight for it will be dropped."""
        if sequence.running:
            self._batch.running.remove(sequence)
            self._tenants.of(sequence).charge(1 - sequence.pending)
        else:
            self._tenants.dequeue(sequence)
        sequence.running, sequence.ended = False, True
        self._batch.free(sequence)
        self._tenants.leave(sequence)

    def forget(self, version: str) -> None:
        """A version is gone: nothing that was computed with it will be asked for."""
        if self._prefix is not None:
            self._prefix.drop(version)

    @property
    def prefix_tokens(self) -> tuple[int, int]:
        """Tokens of prompts that were looked up in the prefix cache, and those found there."""
        return (0, 0) if self._prefix is None else (self._prefix.queried, self._prefix.hit)

    def make_room(self, pages: int) -> bool:
        """Free `pages` pages, preempting the last in order as far as needed; False if not even that suffices."""
        return self._batch.make_room(pages)

    def plan(self) -> StepPlan | None:
        """Choose the next step's work and take the pages for it; None when there is nothing to be done, or nothing
        before the step in flight is committed."""
        self._calm = 0 if self._tenants.queued and len(self._tenants) > 1 else self._calm + 1
        if self._tenants.queued:
            self._batch.admit(self._waits_its_turn)
        while self._batch.running:
            order = self._batch.in_order()
            ready = _ready(order)
            runnable = self._having_their_turn(ready)
            singles, chunks = self._choose(runnable, order)
            if singles or chunks:
                return self._promise(singles, chunks)
            if len(ready) < len(order):
                return None
            # Every page is held by others whose adapters wait for their turn: who cannot run makes way.
            self._batch.send_back(runnable[-1])
        return None

    def _waits_its_turn(self, sequence: Sequence) -> bool:
        return sequence.adapter is not None and self._rotation.waits(sequence.adapter.owner)

    def _having_their_turn(self, ready: list[Sequence]) -> list[Sequence]:
        """Those without an adapter, and those whose adapters are active."""
        adapters = {s.adapter: None for s in ready}
        live = {adapter.owner: adapter.rank for adapter in adapters if adapter is not None}
        active = self._rotation.select(live)
        if len(active) == len(live):
            return ready
        return [s for s in ready if s.adapter is None or s.adapter.owner in active]

    def _choose(self, runnable: Items[Sequence], order: list[Sequence]) -> tuple[list[Work], list[Work]]:
        """Single tokens and chunks of prompts within the token budget, as far as there are pages for them."""
        pendings = [len(s.tokens) + s.in_flight - s.computed for s in runnable]
        budget = self._limits.tokens - pendings.count(1)
        if self.contended:
            budget = min(budget, self._limits.contended)
        shares = self._shares(budget, runnable, pendings)
        reserve = self._batch.reserve
        singles: list[Work] = []
        chunks: list[Work] = []
        for s, pending in zip(runnable, pendings, strict=True):
            start = s.computed
            if pending == 1:
                held = s.running and start < len(s.pages) * KV_BLOCK_TOKENS
                if held or reserve(s, start + 1, order):
                    singles.append(Work(s, start, 1, True, s.row if s.in_flight else -1, s.stay))
                continue
            count = min(pending, budget, shares.get(s.tenant, budget))
            if count == 0 or not reserve(s, start + count, order):
                continue
            budget -= count
            if shares:
                shares[s.tenant] -= count
            (singles if count == 1 else chunks).append(Work(s, start, count, count == pending, -1, s.stay))
        return singles, chunks

    def _shares(self, budget: int, runnable: Items[Sequence], pendings: Items[int]) -> dict[str, int]:
        """What each tenant may use of the budget for prompts; nothing where there is one only, or enough for all."""
        if len(self._tenants) < 2:
            return {}
        wanted: dict[Tenant, int] = {}
        for sequence, pending in zip(runnable, pendings, strict=True):
            if pending > 1:
                tenant = self._tenants.of(sequence)
                wanted[tenant] = wanted.get(tenant, 0) + pending
        if len(wanted) < 2 or sum(wanted.values()) <= budget:
            return {}
        served = {tenant: tenant.counter - tokens * tenant.price for tenant, tokens in wanted.items()}
        return {tenant.name: tokens for tenant, tokens in share_out(budget, wanted, served).items()}

    def _promise(self, singles: list[Work], chunks: list[Work]) -> StepPlan:
        """The plan of a step, as if it had run: only the tokens themselves are still unknown."""
        works = (*singles, *chunks)
        row = 0
        adapters: dict[Resident | None, None] = {}
        for work in works:
            sequence = work.sequence
            sequence.computed += work.count
            adapters[sequence.adapter] = None
            if work.samples:
                sequence.in_flight += 1
                sequence.row = row
                row += 1
        if len(self._tenants) > 1:
            self._tenants.charge(Counter(work.sequence.tenant for work in works if work.samples))
        return StepPlan(works, len(singles), tuple(adapter for adapter in adapters if adapter is not None))

    def commit(self, plan: StepPlan, tokens: Items[int | None]) -> list[Advance]:
        """Record a step that ran: one sampled token for each work that samples, in order. Finished ones leave.

        None stands for a token that could not be drawn: that sequence ends in error. Tokens of sequences that have
        ended since the step was planned are dropped and have no Advance.
        """
        if self._prefix is not None:
            self._learn(self._prefix, plan.works)
        advances = []
        sequences = [work.sequence for work in plan.works if work.samples]
        for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
            sequence.in_flight -= 1
            if sequence.ended:
                continue
            if token is not None:
                sequence.tokens.append(token)
            finish = _finish(sequence, token)
            if finish is not None:
                self.remove(sequence)
            advances.append(Advance(row, sequence, token, finish))
        return advances

    def _learn(self, prefix: PrefixCache, works: Iterable[Work]) -> None:
        """Blocks that are full now may be shared: their keys and values are computed and all their tokens known."""
        for work in works:
            sequence = work.sequence
            full = (work.start + work.count) // KV_BLOCK_TOKENS
            if full > sequence.known and work.stay == sequence.stay and sequence.running and sequence.chain:
                prefix.learn(sequence.chain, sequence.tokens, sequence.pages, sequence.known, full)
                sequence.known = full


def _ready(sequences: list[Sequence]) -> list[Sequence]:
    """Those for which something can be planned before what is in flight is known: an unknown token is fed to the model
    from the device, as a single one only. (Asked of every sequence in every step: properties are written out.)"""
    return [
        s
        for s in sequences
        if not (flying := s.in_flight) or ((length := len(s.tokens) + flying) - s.computed == 1 and length < s.end)
    ]


def _finish(sequence: Sequence, token: int | None) -> FinishReason | None:
    if token is None:
        return "error"
    if token in sequence.stops:
        return "stop"
    return "length" if sequence.generated >= sequence.max_new else None
