"""Traces in the format of the Azure LLM inference datasets, read from files or made in their shape; without adapters.

Called by the planner. Columns: TIMESTAMP (`2023-11-16 18:15:46.6805900`), ContextTokens, GeneratedTokens.
"""

import csv
import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from lorafleet_operator.simulation.traffic import Arrivals, Floats, poisson_times

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
DAY_SECONDS = 86_400.0

# Quantiles of AzureLLMInferenceTrace_conv.csv (19,366 requests, 11 November 2023), Azure Public Dataset, CC-BY.
_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_CONTEXT = (2, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4142, 14050)
_GENERATED = (7, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 1000)
_PEAK_HOUR = 14.0
_TROUGH_SHARE = 0.35
"""Least rate of the day over the greatest."""


class TraceError(Exception):
    """A trace can't be read; the message names file, line and column."""


def read_trace(path: Path) -> Arrivals:
    """Times since the first request, and lengths. Rows may come in any order. Raises TraceError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [_read_row(path, number, row) for number, row in enumerate(csv.DictReader(file), start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from error
    if not rows:
        raise TraceError(f"{path}: no requests in it; its first line must be {','.join(COLUMNS)}")
    rows.sort()
    times = np.array([row[0] for row in rows], dtype=np.float64)
    return Arrivals(
        times - times[0],
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.int64),
        np.zeros(len(rows), dtype=np.int64),
    )


def rescale(arrivals: Arrivals, rate: float) -> Arrivals:
    """The same requests at another mean rate: time is stretched, its shape stays."""
    length = float(arrivals.times[-1]) or 1.0
    return replace(arrivals, times=arrivals.times * (len(arrivals) / rate / length))


def azure_day(rate: float, random: np.random.Generator, seconds: float = DAY_SECONDS) -> Arrivals:
    """A made-up day in the shape of the datasets: a daily wave with a peak in the afternoon, bursts of minutes, and
    lengths with the quantiles of the conversation trace. `rate` is the mean of the whole day."""
    even = poisson_times(rate * _crest(), seconds, random)
    kept = even[random.random(len(even)) < _wave(even, random, seconds)]
    count = len(kept)
    context = np.interp(random.random(count), _SHARES, _CONTEXT)
    generated = np.interp(random.random(count), _SHARES, _GENERATED)
    return Arrivals(kept, context.astype(np.int64), generated.astype(np.int64), np.zeros(count, dtype=np.int64))


def _crest() -> float:
    """Greatest rate over the mean one, bursts included."""
    return 1.25 * 2.0 / (1.0 + _TROUGH_SHARE)


def _wave(times: Floats, random: np.random.Generator, seconds: float) -> Floats:
    """The rate at each moment as a share of the crest: the day's wave times a factor that changes all five minutes."""
    phase = 2.0 * math.pi * (times / DAY_SECONDS - _PEAK_HOUR / 24.0)
    daily = _TROUGH_SHARE + (1.0 - _TROUGH_SHARE) * (0.5 + 0.5 * np.cos(phase))
    factors = random.uniform(0.75, 1.25, int(seconds // 300) + 1)
    shares: Floats = daily * factors[(times // 300).astype(np.int64)] / 1.25
    return shares


def _read_row(path: Path, number: int, row: dict[str, str]) -> tuple[float, int, int]:
    missing = [name for name in COLUMNS if not row.get(name)]
    if missing:
        raise TraceError(f"{path}, line {number}: column {missing[0]} is missing; it must have {','.join(COLUMNS)}")
    column = COLUMNS[0]
    try:
        # Seven digits of a second are more than Python takes.
        moment = datetime.fromisoformat(_cut_fraction(row[column]))
        column = COLUMNS[1]
        context = int(row[column])
        column = COLUMNS[2]
        generated = int(row[column])
    except ValueError as error:
        raise TraceError(f"{path}, line {number}: {column} is {row[column]!r}: {error}") from error
    return (moment - datetime(1970, 1, 1, tzinfo=moment.tzinfo)).total_seconds(), context, generated


def _cut_fraction(text: str) -> str:
    head, dot, tail = text.strip().partition(".")
    digits = tail[: next((at for at, each in enumerate(tail) if not each.isdigit()), len(tail))]
    return f"{head}{dot}{digits[:6]}{tail[len(digits) :]}"
