"""What one replica of a pool can do, as far as it was seen: Assumed until one was saturated, Measured from then on.

Called by the pools' tasks before each plan (`observe`) and by the planning (`capacity_of`). Pure; `now` is in seconds
of a clock that nobody sets.

Replicas are watched over spans of SUSTAINED_SECONDS in which they are strained throughout (requests wait, or the mean
step of a full engine takes longer than the pool aims at) or not at all. What one did while it was strained, less
HEADROOM_PERCENT, is what one can do; one that is not strained raises that by what it does, over the share of its time
in which it did it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from lorafleet_contracts.admin import EngineState, StepsState
from lorafleet_contracts.capacity import effective_capacity
from lorafleet_contracts.resources.pool import CapacityStatus, LoraPoolStatus
from lorafleet_operator.core.stepcost import add_steps, fit_steps

SUSTAINED_SECONDS = 30.0
HEADROOM_PERCENT = 5
"""Kept free of what a saturated replica was seen to do: about twice the noise of a rate of 10/s over FAST_SECONDS."""
ASSUMED_REQUESTS_PER_S = 10.0
ASSUMED_PENALTY_PERCENT = 20
"""The shipped prior: a 7B base on one 80 GB GPU with short chats, and what adapters take of it."""
SLOWEST_RATIO = 2.0
"""An engine whose steps take longer than aimed at even when hardly busy is strained from so many times that on."""
LEAST_BUSY = 0.7
BARELY_BUSY = 0.1
"""A share of the time in steps that is taken for at least so much: what it did there tells little of a full one."""
LEAST_SEQUENCES = 4.0
"""Share of the time in steps, and sequences in a mean one that decodes, below which slow steps are not the load's doing
but the machine's: the replica could do more at a time."""
SMOOTHING = 0.5
"""Weight of one span's finding against what was found before."""
TOLERANCE = 0.1
PENALTY_TOLERANCE = 3
"""By how much a capacity (relatively) and a penalty (in points) must be off before a status says the new one."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a replica with the plain base does per second; `tokens_per_s` is unknown until it was measured, and
    `penalty_percent`, what adapters take of it, until steps with and without them were told apart: then the figures are
    those beside the adapters as they are."""

    requests_per_s: float
    tokens_per_s: float | None
    penalty_percent: int | None
    measured: bool

    @property
    def effective_requests_per_s(self) -> float:
        """Requests/s beside adapters."""
        return _less(self.requests_per_s, self.penalty_percent)

    @property
    def effective_tokens_per_s(self) -> float | None:
        """Tokens/s beside adapters."""
        return None if self.tokens_per_s is None else _less(self.tokens_per_s, self.penalty_percent)


ASSUMED = Capacity(ASSUMED_REQUESTS_PER_S, None, ASSUMED_PENALTY_PERCENT, measured=False)


@dataclass(frozen=True, slots=True)
class Effort:
    """One look at one replica: what its life has counted so far, and whether requests wait."""

    replica: str
    boot_id: str
    waiting: int
    requests: int
    tokens: int
    steps: StepsState

    @classmethod
    def of(cls, replica: str, state: EngineState) -> "Effort":
        """From an engine's state."""
        requests = sum(each.requests for each in state.usage)
        tokens = sum(each.prompt_tokens + each.completion_tokens for each in state.usage)
        return cls(replica, state.boot_id, state.queue, requests, tokens, state.steps or StepsState())


@dataclass(frozen=True, slots=True)
class _Span:
    """A replica's looks from `began` to the `last` one `at`, all `strained` or none (None: only one so far).

    `longest`: of the mean steps.
    """

    first: Effort
    last: Effort
    began: float
    at: float
    strained: bool | None = None
    longest: float = 0.0


@dataclass(frozen=True, slots=True)
class Gauge:
    """What was found: rates beside the adapters as they are, None while nothing was; the `quickest` mean step in s."""

    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    penalty_percent: int | None = None
    saturated: bool = False
    quickest: float | None = None
    spans: Mapping[str, _Span] = field(default_factory=dict, repr=False)


def recall(status: CapacityStatus | None) -> Gauge:
    """A gauge to begin with, from what the status says was measured."""
    if status is None or status.source != "Measured":
        return Gauge()
    shown = _read(status)
    return Gauge(shown.effective_requests_per_s, shown.effective_tokens_per_s, shown.penalty_percent, saturated=True)


def observe(gauge: Gauge, looks: Iterable[Effort], aim: float, now: float) -> Gauge:
    """The gauge after another look at all replicas that answer; `aim` is the longest mean step wanted, in seconds."""
    spans: dict[str, _Span] = {}
    looks = list(looks)
    for look in looks:
        span = gauge.spans.get(look.replica)
        if span is None or span.last.boot_id != look.boot_id or look.requests < span.last.requests:
            spans[look.replica] = _Span(look, look, now, now)
            continue
        step = _mean_step(span.last.steps, look.steps)
        if step is not None:
            gauge = replace(gauge, quickest=min(step, gauge.quickest or step))
        slow = step is not None and step > max(aim, SLOWEST_RATIO * (gauge.quickest or step))
        strained = look.waiting > 0 or (slow and _is_full(span.last.steps, look.steps, now - span.at))
        if strained != span.strained:
            spans[look.replica] = _Span(look, look, now, now, strained)
            continue
        span = replace(span, last=look, at=now, longest=max(span.longest, step or 0.0))
        if now - span.began >= SUSTAINED_SECONDS:
            gauge = _learn(gauge, span, now - span.began, aim)
            span = _Span(look, look, now, now, strained)
        spans[look.replica] = span
    cost = fit_steps(add_steps(each.steps for each in looks)) if looks else None
    penalty = gauge.penalty_percent if cost is None else cost.penalty_percent
    return replace(gauge, spans=spans, penalty_percent=penalty)


def found(gauge: Gauge) -> Capacity:
    """What the gauge knows, with the shipped prior for what it does not."""
    prior = ASSUMED.effective_requests_per_s
    if not gauge.saturated or gauge.requests_per_s is None:
        best = max(prior, gauge.requests_per_s or 0.0)
        return replace(ASSUMED, requests_per_s=_more(best, ASSUMED.penalty_percent))
    penalty, tokens = gauge.penalty_percent, gauge.tokens_per_s
    plain = None if tokens is None else _more(tokens, penalty)
    return Capacity(_more(gauge.requests_per_s, penalty), plain, penalty, measured=True)


def capacity_of(live: Capacity | None, status: LoraPoolStatus) -> Capacity:
    """What to reckon with: what is known now, else what the status says, else the shipped prior."""
    if live is not None:
        return live
    return ASSUMED if status.capacity is None else _read(status.capacity)


def tell(capacity: Capacity, shown: CapacityStatus | None) -> CapacityStatus:
    """What a status says; `shown` stays as long as it is about true."""
    new = CapacityStatus(
        value=_decimal(capacity.requests_per_s),
        tokens=None if capacity.tokens_per_s is None else _decimal(capacity.tokens_per_s),
        source="Measured" if capacity.measured else "Assumed",
        penalty_percent=capacity.penalty_percent,
    )
    if shown is None or (shown.source, shown.tokens is None) != (new.source, new.tokens is None):
        return new
    penalties = shown.penalty_percent, new.penalty_percent
    if None in penalties:
        return shown if penalties == (None, None) and _is_near(new, shown) else new
    off = abs((shown.penalty_percent or 0) - (new.penalty_percent or 0))
    return shown if off <= PENALTY_TOLERANCE and _is_near(new, shown) else new


def _learn(gauge: Gauge, span: _Span, seconds: float, aim: float) -> Gauge:
    requests = (span.last.requests - span.first.requests) / seconds
    tokens = (span.last.tokens - span.first.tokens) / seconds
    if not span.strained:
        return _raise(gauge, *(_at_full_time(each, span, seconds) for each in (requests, tokens)))
    if not requests:
        return gauge  # stuck, or one long answer: it tells nothing of how many it could do
    # With steps longer than aimed at it does more than it should: about as much more as they are longer.
    limit = max(aim, SLOWEST_RATIO * (gauge.quickest or 0.0))
    share = (1 - HEADROOM_PERCENT / 100) * min(limit / span.longest if span.longest else 1.0, 1.0)
    return replace(
        gauge,
        requests_per_s=_towards(gauge.requests_per_s, share * requests, gauge.saturated),
        tokens_per_s=_towards(gauge.tokens_per_s, share * tokens, gauge.saturated),
        saturated=True,
    )


def _raise(gauge: Gauge, requests: float, tokens: float) -> Gauge:
    """The gauge after rates that were done with ease. They raise a limit and are none: one of tokens that was never
    seen, beside a measured one of requests, stays unknown."""
    known = (gauge.requests_per_s or 0.0, gauge.tokens_per_s or 0.0)
    if gauge.saturated and gauge.tokens_per_s is None:
        return replace(gauge, requests_per_s=max(requests, known[0]))
    if requests <= known[0] and (not gauge.saturated or tokens <= known[1]):
        return gauge
    return replace(gauge, requests_per_s=max(requests, known[0]), tokens_per_s=max(tokens, known[1]))


def _at_full_time(rate: float, span: _Span, seconds: float) -> float:
    """What a replica that is not strained could do at least: as much in the time that it had nothing to do, less the
    headroom. Without this, a capacity once found too small would be all that replicas are ever asked for."""
    spent = span.last.steps.seconds - span.first.steps.seconds
    busy = min(max(spent / seconds, BARELY_BUSY), 1.0) if spent > 0 else 1.0
    return max(rate, (1 - HEADROOM_PERCENT / 100) * rate / busy)


def _towards(before: float | None, seen: float, saturated: bool) -> float:
    return seen if before is None or not saturated else before + SMOOTHING * (seen - before)


def _mean_step(before: StepsState, now: StepsState) -> float | None:
    steps = now.steps - before.steps
    return (now.seconds - before.seconds) / steps if steps > 0 else None


def _is_full(before: StepsState, now: StepsState, seconds: float) -> bool:
    """Whether the engine was at work for most of the time, on several sequences at once."""
    decodes, sequences = now.decode_steps - before.decode_steps, now.sequences - before.sequences
    busy = seconds > 0 and (now.seconds - before.seconds) / seconds >= LEAST_BUSY
    return busy and decodes > 0 and sequences / decodes >= LEAST_SEQUENCES


def _less(rate: float, percent: int | None) -> float:
    return float(effective_capacity(Fraction(rate), percent or 0))


def _more(rate: float, percent: int | None) -> float:
    return rate * 100 / (100 - (percent or 0))


def _read(status: CapacityStatus) -> Capacity:
    tokens = None if status.tokens is None else float(status.tokens)
    return Capacity(float(status.value), tokens, status.penalty_percent, status.source == "Measured")


def _is_near(new: CapacityStatus, shown: CapacityStatus) -> bool:
    pairs = [(new.value, shown.value), (new.tokens or "1", shown.tokens or "1")]
    return all(abs(float(a) - float(b)) <= TOLERANCE * float(b) for a, b in pairs)


def _decimal(rate: float) -> str:
    """Three significant digits, without an exponent."""
    return format(float(f"{max(rate, 0.001):.3g}"), "f").rstrip("0").rstrip(".")
