"""The arithmetic of tenants' limits: two leaky budgets and a count of open requests. Called by shell/limits/.

Pure: time is an argument, in seconds of any clock that never goes back. shell/limits/shared_store.py has the same sums
as a script that runs in the store, and a test that holds both against each other.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from lorafleet_contracts.resources.tenant import TenantLimits

BYTES_PER_TOKEN = 4
"""Of a request's body, about: what is too much or too little is corrected by what the engine counted."""


class Limit(StrEnum):
    """Which limit a request is over."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Budget:
    """What comes in per second, and the most that is kept."""

    rate: float
    most: float


@dataclass(frozen=True, slots=True)
class Limits:
    """A tenant's limits; None: none of that kind."""

    requests: Budget | None
    tokens: Budget | None
    concurrency: int | None

    @property
    def counted_to_the_end(self) -> bool:
        """Whether a request's end matters, too."""
        return self.tokens is not None or self.concurrency is not None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants to be let in: its id, and about how many tokens it will take."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The first limit that a request is over, and the seconds after which it is worth another try."""

    limit: Limit
    wait: float


@dataclass(slots=True)
class Ledger:
    """One tenant's budgets as they were `at`, and the ids of its open requests. `tokens` below zero is a debt.

    None: never used, that is full.
    """

    at: float
    requests: float | None = None
    tokens: float | None = None
    open: set[str] = field(default_factory=set)


def read_limits(spec: TenantLimits) -> Limits | None:
    """The limits of a spec; None where it sets none."""
    requests = tokens = None
    if spec.requests_per_second is not None:
        requests = Budget(spec.requests_per_second, spec.burst or spec.requests_per_second)
    if spec.tokens_per_minute is not None:
        tokens = Budget(spec.tokens_per_minute / 60, spec.tokens_per_minute)
    if requests is None and tokens is None and spec.concurrent_requests is None:
        return None
    return Limits(requests, tokens, spec.concurrent_requests)


def admit(ledger: Ledger, limits: Limits, ask: Ask, now: float) -> Refused | None:
    """Let a request in and charge it, or say which limit it is over: then nothing is charged.

    A request that asks for more tokens than the budget ever holds gets in when that is full, and leaves a debt.
    """
    requests, tokens = _refill(ledger, limits, now)
    if limits.requests is not None and requests < 1:
        return Refused(Limit.REQUESTS, (1 - requests) / limits.requests.rate)
    if limits.tokens is not None and tokens < min(ask.tokens, limits.tokens.most):
        return Refused(Limit.TOKENS, (min(ask.tokens, limits.tokens.most) - tokens) / limits.tokens.rate)
    if limits.concurrency is not None:
        if len(ledger.open) >= limits.concurrency:
            return Refused(Limit.CONCURRENCY, 1.0)
        ledger.open.add(ask.id)
    ledger.requests = requests - 1 if limits.requests else None
    ledger.tokens = tokens - ask.tokens if limits.tokens else None
    return None


def charge(ledger: Ledger, limits: Limits, tokens: int, now: float) -> None:
    """Take tokens that an engine has counted; a negative number gives an estimate back."""
    _, left = _refill(ledger, limits, now)
    if limits.tokens is not None:
        ledger.tokens = min(left - tokens, limits.tokens.most)


def estimate_tokens(body_bytes: int, answer: int, window: int) -> int:
    """About how many tokens a request takes: its body, and an answer of that many; never more than the window."""
    return min(body_bytes // BYTES_PER_TOKEN + answer, window)


def _refill(ledger: Ledger, limits: Limits, now: float) -> tuple[float, float]:
    """Bring both budgets up to `now` and return them; 0 for one without a limit."""
    elapsed = max(now - ledger.at, 0.0)
    ledger.at = max(now, ledger.at)
    ledger.requests = _grown(ledger.requests, limits.requests, elapsed)
    ledger.tokens = _grown(ledger.tokens, limits.tokens, elapsed)
    return ledger.requests or 0.0, ledger.tokens or 0.0


def _grown(level: float | None, budget: Budget | None, elapsed: float) -> float | None:
    if budget is None:
        return None
    return budget.most if level is None else min(level + elapsed * budget.rate, budget.most)
