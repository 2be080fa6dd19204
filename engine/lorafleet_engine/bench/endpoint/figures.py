"""Figures of a phase: quantiles by group, goodput, errors by kind, how many waited. Pure; used by protocol.py."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from lorafleet_engine.bench.endpoint.client import Outcome
from lorafleet_engine.bench.endpoint.drive import Phase

CLASSES = (8, 16, 32, 64, 128, 256)
DECILES = 10
SAMPLE_S = 0.25
"""Waiting requests are counted so often."""
FEW = 100
"""Below so many samples a p99 is their maximum."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds: the latest first token, and the longest mean time between an answer's tokens."""

    ttft: float
    itl: float

    def holds(self, outcome: Outcome) -> bool:
        """Whether a request was answered in time."""
        return not outcome.error and outcome.ttft is not None and outcome.ttft <= self.ttft and outcome.pace <= self.itl


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all are not above; None of none."""
    return ordered[max(ceil(share * len(ordered)), 1) - 1] if ordered else None


def summarise(outcomes: Sequence[Outcome], slo: Slo) -> dict[str, Any]:
    """Counts, latencies in milliseconds and goodput of some requests. Latencies are those of complete answers."""
    good = [outcome for outcome in outcomes if not outcome.error]
    ttft = sorted(outcome.ttft for outcome in good if outcome.ttft is not None)
    gaps = sorted(gap for outcome in good for gap in outcome.gaps)
    held = sum(map(slo.holds, outcomes))
    return {
        "requests": len(outcomes),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error).most_common()),
        "ttft_ms": _latency(ttft),
        "itl_ms": _latency(gaps),
        "in_slo": held,
        "in_slo_share": round(held / len(outcomes), 4) if outcomes else None,
    }


def by_group(outcomes: Iterable[Outcome], key: Callable[[Outcome], Hashable], slo: Slo) -> dict[str, dict[str, Any]]:
    """Figures of each group, in order of their keys."""
    groups: defaultdict[Any, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[key(outcome)].append(outcome)
    return {str(name): summarise(groups[name], slo) for name in sorted(groups)}


def decile_of(adapters: int) -> Callable[[Outcome], int]:
    """1 for requests to the most popular tenth of the adapters, 10 for the rarest."""

    def decile(outcome: Outcome) -> int:
        assert outcome.ask.popularity is not None
        return outcome.ask.popularity * DECILES // adapters + 1

    return decile


def rank_class(outcome: Outcome) -> str:
    """The smallest of CLASSES that holds the adapter's rank, padded so that names sort by size."""
    rank = outcome.ask.model.rank
    if rank is None:
        return "unknown"
    return f"r{next((ceiling for ceiling in CLASSES if rank <= ceiling), CLASSES[-1] * 2):03d}"


def phase_figures(phase: Phase, slo: Slo, adapters: int) -> dict[str, Any]:
    """All figures of a phase. `adapters` is the size of the catalogue; 0 for a phase of the base alone."""
    outcomes = phase.outcomes
    tokens = sum(outcome.tokens for outcome in outcomes)
    answered = sum(not outcome.error for outcome in outcomes)
    held = sum(map(slo.holds, outcomes))
    lag = sorted(outcome.sent - outcome.ask.at for outcome in outcomes)
    seconds = phase.seconds
    figures = {
        **summarise(outcomes, slo),
        "offered": phase.offered,
        "interrupted": phase.interrupted,
        "seconds": round(seconds, 3),
        "requests_per_s": round(answered / seconds, 3) if seconds else None,
        "tokens_per_s": round(tokens / seconds, 1) if seconds else None,
        "goodput_per_s": round(held / seconds, 3) if seconds else None,
        "prompt_tokens": _mean([outcome.prompt_tokens for outcome in outcomes if outcome.prompt_tokens]),
        "answer_tokens": _mean([outcome.tokens for outcome in outcomes if outcome.tokens]),
        "client_lag_ms": _latency(lag),
        "waiting": waiting(outcomes, seconds),
    }
    if adapters:
        figures["by_decile"] = by_group(outcomes, decile_of(adapters), slo)
        figures["by_rank"] = by_group(outcomes, rank_class, slo)
        figures["by_start"] = by_group(outcomes, lambda outcome: outcome.start, slo)
        figures["by_adapter"] = by_group(outcomes, lambda outcome: outcome.ask.model.id, slo)
    return figures


def waiting(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """How many requests were due and had no first token, as the client saw it, sampled over the phase."""
    changes = [(outcome.ask.at, 1) for outcome in outcomes]
    changes += [(outcome.ended if outcome.first is None else outcome.first, -1) for outcome in outcomes]
    changes.sort()
    counts, now, at = [], 0, 0
    for sample in range(int(seconds / SAMPLE_S) + 1):
        while at < len(changes) and changes[at][0] <= sample * SAMPLE_S:
            now += changes[at][1]
            at += 1
        counts.append(now)
    return {"mean": _mean(counts), "max": max(counts, default=0)}


def error_examples(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """One message of each kind of error."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.error:
            found.setdefault(outcome.error, f"{outcome.ask.model.id}: {outcome.detail}")
    return found


def _latency(ordered: Sequence[float]) -> dict[str, Any]:
    """Milliseconds of seconds, and how many there were."""
    cut = {"p50": quantile(ordered, 0.5), "p99": quantile(ordered, 0.99), "max": ordered[-1] if ordered else None}
    return {name: None if value is None else round(value * 1000, 2) for name, value in cut.items()} | {
        "count": len(ordered)
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 2) if values else None
