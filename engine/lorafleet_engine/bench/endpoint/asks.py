"""Which requests come when: arrivals (Poisson or a trace) and which adapter each one names. Reads no more than a trace.

The same seed gives the same requests on any machine; the base's arm has the very arrivals and sizes of the adapters'.
"""

import csv
import datetime
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from random import Random

from lorafleet_engine.bench.endpoint.models import Model

MAX_TRACE_TOKENS = 1 << 20


class TraceError(Exception):
    """The trace is not in the Azure LLM inference format; the message names the line."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: due `at` seconds after the phase began. `popularity` is the adapter's place, 0 = most asked for;
    None for the base. `group` is free for the caller: who sent it."""

    at: float
    number: int
    model: Model
    popularity: int | None
    prompt_tokens: int
    answer_tokens: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request is due, in seconds from the start, and its sizes in tokens."""

    at: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of prompts and answers, where no trace says them."""

    prompt: int
    answer: int


def poisson(rate: float, count: int, sizes: Sizes, seed: int) -> list[Arrival]:
    """`count` arrivals, independent of one another, in the time in which so many come at `rate` a second: a Poisson
    process of which it is known how many came, so that short phases have the load that was asked for."""
    random, span = Random(f"arrivals {seed}"), count / rate
    return [Arrival(at, sizes.prompt, sizes.answer) for at in sorted(random.random() * span for _ in range(count))]


def read_trace(path: Path, count: int) -> list[Arrival]:
    """The first `count` lines of a trace (TIMESTAMP, ContextTokens, GeneratedTokens). Raises TraceError."""
    try:
        with path.open(newline="") as file:
            arrivals = [arrival for arrival, _ in zip(_lines(path, csv.DictReader(file)), range(count), strict=False)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from error
    if not arrivals:
        raise TraceError(f"{path}: holds no requests")
    first = min(arrival.at for arrival in arrivals)
    return sorted((replace(each, at=each.at - first) for each in arrivals), key=lambda each: each.at)


def at_rate(arrivals: Sequence[Arrival], rate: float) -> list[Arrival]:
    """The same arrivals, stretched in time so that they come at `rate` a second in the mean."""
    span = arrivals[-1].at
    factor = len(arrivals) / rate / span if span else 0.0
    return [replace(arrival, at=arrival.at * factor) for arrival in arrivals]


def mean_rate(arrivals: Sequence[Arrival]) -> float:
    """Arrivals a second."""
    return len(arrivals) / arrivals[-1].at if arrivals[-1].at else float(len(arrivals))


def name_adapters(arrivals: Sequence[Arrival], adapters: Sequence[Model], zipf: float, seed: int) -> list[Ask]:
    """Each arrival with an adapter, number k drawn with weight (k + 1) ** -zipf."""
    random = Random(f"adapters {seed} {zipf}")
    edges = list(accumulate((number + 1) ** -zipf for number in range(len(adapters))))
    asks = []
    for number, arrival in enumerate(arrivals):
        drawn = min(bisect(edges, random.random() * edges[-1]), len(adapters) - 1)
        asks.append(_ask(number, arrival, adapters[drawn], drawn))
    return asks


def name_base(arrivals: Sequence[Arrival], base: Model) -> list[Ask]:
    """Each arrival without an adapter."""
    return [_ask(number, arrival, base, None) for number, arrival in enumerate(arrivals)]


def _ask(number: int, arrival: Arrival, model: Model, popularity: int | None) -> Ask:
    return Ask(arrival.at, number, model, popularity, arrival.prompt_tokens, arrival.answer_tokens)


def _lines(path: Path, rows: "csv.DictReader[str]") -> Iterator[Arrival]:
    for row in rows:
        try:
            stamp = row["TIMESTAMP"].strip()
            sizes = [int(row[name]) for name in ("ContextTokens", "GeneratedTokens")]
            at = _seconds(stamp)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise TraceError(
                f"{path}, line {rows.line_num}: needs the columns TIMESTAMP, ContextTokens, GeneratedTokens ({error!r})"
            ) from error
        if not all(0 <= size <= MAX_TRACE_TOKENS for size in sizes):
            raise TraceError(f"{path}, line {rows.line_num}: tokens must be from 0 to {MAX_TRACE_TOKENS}")
        yield Arrival(at, max(sizes[0], 1), max(sizes[1], 1))


def _seconds(stamp: str) -> float:
    """Seconds of a number, or of a date with up to nine decimals, as the published traces have seven."""
    try:
        return float(stamp)
    except ValueError:
        whole, dot, rest = stamp.partition(".")
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        moment = datetime.datetime.fromisoformat(whole + rest[len(digits) :])
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return moment.timestamp() + (float(f"0.{digits}") if dot and digits else 0.0)
