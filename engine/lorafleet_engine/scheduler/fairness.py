"""Whose turn it is when tenants wait: a counter of charges for each, over its weight. Used by scheduler.py only.

Start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996) in the form of the virtual token counter for LLM serving
(Sheng et al.: Fairness in Serving Large Language Models, OSDI 2024). A tenant is charged for a request's tokens when it
is admitted, then for each token generated; what comes back uncomputed is refunded. The tenant with the smallest counter
is admitted next. One that begins to wait starts at what has been computed for the one that had least of those that
wait, less the prompts of one short step: its first prompt is not divided with theirs, and idling earns no more than
that. When nobody waits all start over, at what is admitted of theirs and still to be computed: prompts that were
admitted while there was room are not ahead of who comes next.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from lorafleet_engine.scheduler.sequence import Sequence


@dataclass(slots=True, eq=False)
class Tenant:
    """Its queue in order of arrival, how many live sequences it has, and its `counter` of tokens x `price`."""

    name: str
    price: float
    counter: float = 0.0
    live: int = 0
    waiting: list[Sequence] = field(default_factory=list)

    def charge(self, tokens: int) -> None:
        """Count tokens; a negative number is a refund."""
        self.counter += tokens * self.price


class Tenants:
    """All tenants with live sequences. A step computes at most `step_tokens`; a newcomer is `ahead` by so many tokens.

    `weights` stand for tenants whose sequences bring none.
    """

    def __init__(self, weights: Mapping[str, float], step_tokens: int, ahead: int) -> None:
        if min(weights.values(), default=1) <= 0:
            raise ValueError("weights must be positive")
        self._weights = weights
        self._step_tokens = step_tokens
        self._ahead = ahead
        self._tenants: dict[str, Tenant] = {}
        self._slack = 0.0
        self.queued = 0
        self.running: list[Sequence] = []
        """The admitted sequences in order of arrival; batch.py's to change."""

    def __len__(self) -> int:
        return len(self._tenants)

    @property
    def slack(self) -> float:
        """How far a tenant may be ahead of one that waits before it must make way: the largest charge of an admission
        since nobody waited, and a step's tokens, so that whoever is admitted gets on before it is sent back again."""
        return self._slack

    @property
    def limit(self) -> float:
        """Tenants with a larger counter are over their share: one waits that has had less. Mostly there is no limit."""
        if self.queued == 0 or len(self._tenants) < 2:
            return float("inf")
        return self._least_waiting() + self._slack

    def any_above(self, limit: float) -> bool:
        """Whether any tenant's counter is above `limit`."""
        return any(tenant.counter > limit for tenant in self._tenants.values())

    def arrive(self, sequence: Sequence) -> None:
        """Count a new sequence as live and queue it; its tenant has the newest one's weight from now on."""
        tenant, price = self._tenants.get(sequence.tenant), 1 / self._weights.get(sequence.tenant, sequence.weight)
        if tenant is None:
            tenant = self._tenants[sequence.tenant] = Tenant(sequence.tenant, price)
        tenant.price = price
        tenant.live += 1
        self.enqueue(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended, and is not queued."""
        tenant = self.of(sequence)
        tenant.live -= 1
        if not tenant.live and tenant.counter <= self._least_waiting():
            del self._tenants[tenant.name]

    def charge(self, tokens: Mapping[str, int]) -> None:
        """Count tokens by tenant."""
        for name, count in tokens.items():
            self._tenants[name].charge(count)

    def of(self, sequence: Sequence) -> Tenant:
        """The tenant of a live sequence."""
        return self._tenants[sequence.tenant]

    def enqueue(self, sequence: Sequence) -> None:
        """Put a live sequence into its tenant's queue."""
        if self.queued == 0:
            self._start_over()
        tenant = self.of(sequence)
        if not tenant.waiting:
            start = self._least_served() - self._ahead * tenant.price if self.queued else 0.0
            tenant.counter = max(tenant.counter, start)
        insort(tenant.waiting, sequence, key=lambda s: s.arrival)
        self.queued += 1
        self._slack = max(self._slack, (sequence.pending + self._step_tokens) * tenant.price)

    def dequeue(self, sequence: Sequence) -> None:
        """Take a sequence out of its tenant's queue."""
        self.of(sequence).waiting.remove(sequence)
        self.queued -= 1

    def pop(self, tenant: Tenant) -> Sequence:
        """Take the head of a tenant's queue."""
        self.queued -= 1
        return tenant.waiting.pop(0)

    def next(self, passed: Iterable[Tenant]) -> Tenant | None:
        """The waiting tenant with the smallest counter (of equals, whose head came first) that was not passed over."""
        waiting = [tenant for tenant in self._tenants.values() if tenant.waiting and tenant not in passed]
        return min(waiting, key=lambda tenant: (tenant.counter, tenant.waiting[0].arrival), default=None)

    def waiting(self) -> list[Sequence]:
        """All queued sequences in order of arrival."""
        queued = (sequence for tenant in self._tenants.values() for sequence in tenant.waiting)
        return sorted(queued, key=lambda sequence: sequence.arrival)

    def _least_waiting(self) -> float:
        waiting = (tenant.counter for tenant in self._tenants.values() if tenant.waiting)
        return min(waiting, default=float("inf"))

    def _least_served(self) -> float:
        """The smallest counter of those that wait, less what they were charged for and is still to be computed."""
        owed = self._owed()
        waiting = (each for each in self._tenants.values() if each.waiting)
        return min((each.counter - owed[each.name] * each.price for each in waiting), default=float("inf"))

    def _owed(self) -> Counter[str]:
        """Tokens by tenant that were charged for at admission and are still to be computed."""
        owed: Counter[str] = Counter()
        for sequence in self.running:
            if (pending := sequence.pending) > 1:
                owed[sequence.tenant] += pending
        return owed

    def _start_over(self) -> None:
        self._tenants = {name: tenant for name, tenant in self._tenants.items() if tenant.live}
        self._slack = 0.0
        owed = self._owed()
        for tenant in self._tenants.values():
            tenant.counter = owed[tenant.name] * tenant.price


def share_out(budget: int, wanted: Mapping[Tenant, int], served: Mapping[Tenant, float]) -> dict[Tenant, int]:
    """Divide a step's prompt tokens: whoever was served least gets first, up to the next one's level, and so on.

    `wanted` are tokens, `served` counters; nobody gets more than wanted, and nothing is left while anybody wants more.
    """
    given = dict.fromkeys(wanted, 0)
    level = dict(served)
    open_ones = {tenant for tenant, tokens in wanted.items() if tokens}
    while budget > 0 and open_ones:
        least = min(level[tenant] for tenant in open_ones)
        lowest = [tenant for tenant in wanted if tenant in open_ones and level[tenant] <= least]
        ceiling = min((level[tenant] for tenant in open_ones if level[tenant] > least), default=float("inf"))
        rise = min(ceiling - least, budget / sum(1 / tenant.price for tenant in lowest))
        for tenant in lowest:
            count = min(max(ceil(rise / tenant.price), 1), wanted[tenant] - given[tenant], budget)
            given[tenant] += count
            level[tenant] += count * tenant.price
            budget -= count
            if given[tenant] == wanted[tenant]:
                open_ones.discard(tenant)
    return given
