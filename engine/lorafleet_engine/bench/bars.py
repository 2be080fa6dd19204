"""The bars and goals that were set before measuring (docs/benchmarks/bars.json), and which are met. Used by merge.py.

A ratio is compared after rounding to the digits in which its bar was given; everything else as it is.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure to reach. `match` are fields of its record, `context` a range of its context; a goal may be given as so
    much over the record's own base."""

    name: str
    match: dict[str, Any]
    field: str
    bar: float
    goal: float | None = None
    goal_over_own_base: float | None = None
    better: str = "lower"
    digits: int | None = None
    context: tuple[int, int] | None = None

    def record(self, records: Sequence[Record]) -> Record | None:
        """The record that it is about, if it was measured."""
        for record in records:
            same = all(name in record and record[name] == value for name, value in self.match.items())
            if same and (self.context is None or self.context[0] <= record["context"] < self.context[1]):
                return record
        return None

    def aim(self, record: Record | None) -> float | None:
        """The goal as a figure."""
        if self.goal_over_own_base is None:
            return self.goal
        return None if record is None else round(record["own_base_ms"] + self.goal_over_own_base, 3)

    def met(self, value: float, limit: float | None) -> bool | None:
        """Whether `value` reaches `limit`; None without one."""
        if limit is None:
            return None
        if self.digits is not None:
            value = round(value, self.digits)
        return value >= limit if self.better == "higher" else value <= limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar against what was measured; all None where nothing was."""

    name: str
    value: float | None
    bar: float
    bar_met: bool | None
    goal: float | None
    goal_met: bool | None

    def fields(self) -> Record:
        """As JSON has it."""
        return asdict(self)


def judge(bars: Sequence[Bar], records: Sequence[Record]) -> list[Verdict]:
    """Every bar in order."""
    verdicts = []
    for bar in bars:
        record = bar.record(records)
        goal = bar.aim(record)
        if record is None:
            verdicts.append(Verdict(bar.name, None, bar.bar, None, goal, None))
        else:
            value = float(record[bar.field])
            verdicts.append(Verdict(bar.name, value, bar.bar, bar.met(value, bar.bar), goal, bar.met(value, goal)))
    return verdicts
