"""Continuous batching: prompts in chunks and single decode tokens share each step's budget.

Used by loop.py and bench/smoke.py: submit, then plan -> run -> commit, step by step. The next step may be planned
before the last one is committed (never two ahead): a plan promises its tokens, the commit fills them in. Order of
arrival decides: an older sequence is never displaced by a younger one, so the oldest always gets on. When KV pages run
out, the youngest sequence gives up its pages and is computed anew later (preemption by recompute). Pages are free at
once even if a step in flight still uses them: the device runs steps in the order in which they were planned.
"""

from bisect import insort
from collections.abc import Sequence as Items

from lorafleet_engine.memory.geometry import pages_for_tokens
from lorafleet_engine.memory.pages import Owner, PagePool
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import FinishReason, StepLimits
from lorafleet_engine.scheduler.rotation import Rotation
from lorafleet_engine.scheduler.sequence import Advance, Sequence, StepPlan, Work


class Scheduler:
    """Holds the live sequences: `waiting` for their first page, and `running`, which hold pages or get them next."""

    def __init__(self, limits: StepLimits, pool: PagePool) -> None:
        if limits.tokens <= limits.sequences:
            raise ValueError("limits.tokens must exceed limits.sequences, or no prompt could run beside full decodes")
        self._limits = limits
        self._pool = pool
        self._rotation = Rotation(limits.distinct_adapters, limits.rank_sum)
        self._arrivals = 0
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0

    def submit(self, sequence: Sequence) -> bool:
        """Queue a sequence; False if the queue is full. Its prompt and answer must fit into the pool's KV floor."""
        if len(self.waiting) >= self._limits.waiting:
            return False
        sequence.arrival = self._arrivals
        self._arrivals += 1
        self.waiting.append(sequence)
        return True

    def remove(self, sequence: Sequence) -> None:
        """End a live sequence now: its pages are free afterwards, and what is in flight for it will be dropped."""
        (self.running if sequence.running else self.waiting).remove(sequence)
        sequence.running, sequence.ended = False, True
        self._free(sequence)

    def make_room(self, pages: int) -> bool:
        """Free `pages` pages, preempting the youngest sequences as far as needed; False if not even that suffices."""
        while self._pool.free < pages and self._preempt_younger_than(-1):
            pass
        return self._pool.free >= pages

    def plan(self) -> StepPlan | None:
        """Choose the next step's work and take the pages for it; None when there is nothing to be done, or nothing
        before the step in flight is committed."""
        self._admit()
        while self.running:
            runnable = self._runnable()
            singles, chunks = self._choose(runnable)
            if singles or chunks:
                return _promise(singles, chunks)
            if any(sequence.idle for sequence in self.running):
                return None
            # Every page is held by older sequences whose adapters wait for their turn: who cannot run makes way.
            self._send_back(runnable[-1])
        return None

    def _runnable(self) -> list[Sequence]:
        """The running sequences that have work and whose adapters have their turn, oldest first."""
        ready = [sequence for sequence in self.running if not sequence.idle]
        live = {s.adapter.owner: s.adapter.rank for s in ready if s.adapter is not None}
        active = self._rotation.select(live)
        return [s for s in ready if s.adapter is None or s.adapter.owner in active]

    def _choose(self, runnable: Items[Sequence]) -> tuple[list[Work], list[Work]]:
        """Single tokens and chunks of prompts within the token budget, as far as there are pages for them."""
        pendings = [sequence.pending for sequence in runnable]
        chunk_budget = self._limits.tokens - pendings.count(1)
        singles: list[Work] = []
        chunks: list[Work] = []
        for sequence, pending in zip(runnable, pendings, strict=True):
            count = 1 if pending == 1 else min(pending, chunk_budget)
            if count == 0 or not self._reserve(sequence, sequence.computed + count):
                continue
            if pending > 1:
                chunk_budget -= count
            source = sequence.row if sequence.in_flight else -1
            work = Work(sequence, sequence.computed, count, count == pending, source)
            (singles if count == 1 else chunks).append(work)
        return singles, chunks

    def commit(self, plan: StepPlan, tokens: Items[int | None]) -> list[Advance]:
        """Record a step that ran: one sampled token for each work that samples, in order. Finished ones leave.

        None stands for a token that could not be drawn: that sequence ends in error. Tokens of sequences that have
        ended since the step was planned are dropped and have no Advance.
        """
        advances = []
        sequences = (work.sequence for work in plan.works if work.samples)
        for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
            sequence.in_flight -= 1
            if sequence.ended:
                continue
            if token is not None:
                sequence.tokens.append(token)
            advance = Advance(row, sequence, token, _finish(sequence, token))
            if advance.finish is not None:
                self.remove(sequence)
            advances.append(advance)
        return advances

    def _admit(self) -> None:
        """Move the head of the queue to running while there is room for it; the queue is never jumped."""
        if not self.waiting:
            return
        promised = sum(_outstanding(sequence) for sequence in self.running)
        room = self._limits.sequences - sum(not sequence.ending for sequence in self.running)
        while self.waiting and room > 0:
            needed = _outstanding(self.waiting[0])
            if self.running and promised + needed > self._pool.free:
                break
            promised += needed
            admitted = self.waiting.pop(0)
            admitted.running = True
            room -= not admitted.ending
            insort(self.running, admitted, key=lambda s: s.arrival)

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Give the sequence pages for its first `tokens` tokens, if need be those of younger ones."""
        if not sequence.running:
            return False
        needed = pages_for_tokens(tokens) - len(sequence.pages)
        while needed > self._pool.free:
            if not self._preempt_younger_than(sequence.arrival):
                return False
        sequence.pages.extend(self._pool.take(max(needed, 0), Owner.KV))
        return True

    def _preempt_younger_than(self, arrival: int) -> bool:
        """Send the youngest sequence that holds pages back to the queue; False if none is younger than `arrival`."""
        for victim in reversed(self.running):
            if victim.arrival <= arrival:
                return False
            if victim.pages:
                self._send_back(victim)
                return True
        return False

    def _send_back(self, victim: Sequence) -> None:
        """From running to the queue, in order of arrival, without pages."""
        self.running.remove(victim)
        victim.running = False
        self._free(victim)
        insort(self.waiting, victim, key=lambda s: s.arrival)
        self.preemptions += 1

    def _free(self, sequence: Sequence) -> None:
        self._pool.give(sequence.pages, Owner.KV)
        sequence.pages.clear()
        sequence.computed = 0


def _promise(singles: list[Work], chunks: list[Work]) -> StepPlan:
    """The plan of a step, as if it had run: only the tokens themselves are still unknown."""
    works = (*singles, *chunks)
    row = 0
    for work in works:
        sequence = work.sequence
        sequence.computed += work.count
        if work.samples:
            sequence.in_flight += 1
            sequence.row = row
            row += 1
    return StepPlan(works, len(singles), _distinct(works))


def _distinct(works: Items[Work]) -> tuple[Resident, ...]:
    """The adapters of a step, each once, in order of first use."""
    return tuple(dict.fromkeys(work.sequence.adapter for work in works if work.sequence.adapter is not None))


def _outstanding(sequence: Sequence) -> int:
    """Pages that the sequence still needs before it can decode."""
    if sequence.ending:
        return 0
    return max(pages_for_tokens(len(sequence.tokens) + sequence.in_flight + 1) - len(sequence.pages), 0)


def _finish(sequence: Sequence, token: int | None) -> FinishReason | None:
    if token is None:
        return "error"
    if token in sequence.stops:
        return "stop"
    return "length" if sequence.generated >= sequence.max_new else None
