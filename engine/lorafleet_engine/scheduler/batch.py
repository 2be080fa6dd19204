"""Which sequences are in and which pages they hold: admission, growth, preemption. Used by scheduler.py only.

Among the sequences of one tenant order of arrival decides: an older one is never displaced by a younger one. Tenants
wait for each other as fairness.py says; who is over its share while another waits makes way first. What leaves without
being done is computed anew later (preemption by recompute), but for what the prefix cache still has.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.memory.geometry import pages_for_tokens
from lorafleet_engine.memory.pages import Owner, PagePool
from lorafleet_engine.memory.prefix import PrefixCache
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.fairness import Tenant, Tenants
from lorafleet_engine.scheduler.sequence import Sequence


class Batch:
    """The `running` sequences, at most `size` (beside those that are ending), in order of arrival."""

    def __init__(self, limits: StepLimits, pool: PagePool, tenants: Tenants, prefix: PrefixCache | None) -> None:
        self._size = limits.sequences
        self._ahead = limits.tokens
        self._pool = pool
        self._tenants = tenants
        self._prefix = prefix
        self.running = tenants.running
        self.preemptions = 0

    def in_order(self) -> list[Sequence]:
        """The running sequences, oldest first; those of tenants over their share last, by how much they are over."""
        limit = self._tenants.limit
        if not self._tenants.any_above(limit):
            return self.running
        counters = [self._tenants.of(sequence).counter for sequence in self.running]
        within = [s for s, counter in zip(self.running, counters, strict=True) if counter <= limit]
        over = [(counter, s.arrival, s) for s, counter in zip(self.running, counters, strict=True) if counter > limit]
        return within + [sequence for *_, sequence in sorted(over)]

    def admit(self, waits: Callable[[Sequence], bool]) -> None:
        """Move heads of queues to running while there is room for them, the tenant that had least first.

        Nobody has more than a step's tokens of prompts admitted that could be computed (those that are not held up, by
        `waits`): what is queued is still given out by who had least, what is admitted goes on.

        A tenant's own queue is never jumped. While a head does not fit, other tenants' may overtake it until they are
        over their share; from then on they make way for it.
        """
        ending = sum(1 for s in self.running if s.in_flight and len(s.tokens) + s.in_flight >= s.end)
        room = self._size - len(self.running) + ending
        if room <= 0 and not self._tenants.any_above(self._tenants.limit):
            return
        promised = sum(map(_outstanding, self.running))
        passed: list[Tenant] = []
        ahead = self._uncomputed(waits)
        while (tenant := self._tenants.next(passed)) is not None:
            head = tenant.waiting[0]
            if passed and tenant.counter + head.pending * tenant.price > passed[0].counter + self._tenants.slack:
                return
            if ahead[tenant] >= self._ahead:
                if (victim := self._who_makes_way(tenant)) is not None:
                    room += not victim.ending
                    promised -= _outstanding(victim)
                    self.send_back(victim)
                passed.append(tenant)
                continue
            found = self._find(head)
            while room <= 0 or not self._fits(head, found, promised):
                victim = self._who_makes_way(tenant)
                if victim is None:
                    break
                room += not victim.ending
                promised -= _outstanding(victim)
                self.send_back(victim)
            else:
                self._begin(tenant, found)
                ahead[tenant] += head.pending
                room -= not head.ending
                promised += _outstanding(head)
                continue
            if room <= 0:
                return
            passed.append(tenant)

    def _uncomputed(self, waits: Callable[[Sequence], bool]) -> Counter[Tenant]:
        """Tokens of prompts that are admitted and could be computed now, by tenant."""
        ahead: Counter[Tenant] = Counter()
        for sequence in self.running:
            if (pending := sequence.pending) > 1 and not waits(sequence):
                ahead[self._tenants.of(sequence)] += pending
        return ahead

    def reserve(self, sequence: Sequence, tokens: int, order: list[Sequence]) -> bool:
        """Give the sequence pages for its first `tokens` tokens, if need be those of the last in `order` behind it."""
        if not sequence.running:
            return False
        needed = pages_for_tokens(tokens) - len(sequence.pages)
        while needed > self._pool.free:
            if not self._preempt_last(order, sequence):
                return False
        if needed > 0:
            sequence.pages.extend(self._pool.take(needed, Owner.KV))
        return True

    def make_room(self, pages: int) -> bool:
        """Free `pages` pages, preempting the last in order as far as needed; False if not even that suffices."""
        while self._pool.free < pages and self._preempt_last(self.in_order(), None):
            pass
        return self._pool.free >= pages

    def send_back(self, victim: Sequence) -> None:
        """From running to its tenant's queue, in order of arrival, without pages."""
        if victim.pending > 1:  # a single token was generated, and charged for that
            self._tenants.of(victim).charge(-victim.pending)
        self.running.remove(victim)
        victim.running = False
        self.free(victim)
        self._tenants.enqueue(victim)
        self.preemptions += 1

    def free(self, sequence: Sequence) -> None:
        """Let go of the pages; the first blocks are kept longest, as no other is of use without them."""
        self._pool.give(reversed(sequence.pages), Owner.KV)
        sequence.pages = []
        sequence.computed = sequence.known = 0

    def _begin(self, tenant: Tenant, found: list[int]) -> None:
        """Admit a tenant's head, with the pages that were found for its beginning."""
        head = self._tenants.pop(tenant)
        self._pool.share(found)
        head.pages, head.known, head.computed = found, len(found), len(found) * KV_BLOCK_TOKENS
        head.stay += 1
        head.running = True
        tenant.charge(head.pending)
        if self._prefix is not None and head.stay == 1:
            head.cached = head.computed
            self._prefix.count(head.prompt_length, head.cached)
        insort(self.running, head, key=lambda s: s.arrival)

    def _find(self, head: Sequence) -> list[int]:
        if self._prefix is None or head.chain is None or head.ending:
            return []
        return self._prefix.find(head.chain, head.tokens)

    def _fits(self, head: Sequence, found: list[int], promised: int) -> bool:
        if not self.running:
            return True
        revived = sum(not self._pool.is_held(page) for page in found)
        return promised + _outstanding(head) - len(found) + revived <= self._pool.free

    def _who_makes_way(self, waiting: Tenant) -> Sequence | None:
        """The youngest sequence of the tenant most over its share, seen from one that waits; None if none is over."""
        limit = waiting.counter + self._tenants.slack
        if not self._tenants.any_above(limit):
            return None
        most = max(reversed(self.running), key=lambda sequence: self._tenants.of(sequence).counter, default=None)
        return most if most is not None and self._tenants.of(most).counter > limit else None

    def _preempt_last(self, order: list[Sequence], asking: Sequence | None) -> bool:
        """Send the last in `order` that holds pages back to the queue; False if that is not behind `asking`."""
        for victim in reversed(order):
            if victim is asking:
                return False
            if victim.running and victim.pages:
                self.send_back(victim)
                return True
        return False


def _outstanding(sequence: Sequence) -> int:
    """Pages that the sequence still needs before it can decode."""
    if sequence.ending:
        return 0
    return max(pages_for_tokens(len(sequence.tokens) + sequence.in_flight + 1) - len(sequence.pages), 0)
