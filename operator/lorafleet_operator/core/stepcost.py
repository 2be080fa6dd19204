"""What a decoding step of an engine costs, fitted to the sums that engines count. Pure arithmetic.

Called by capability.py and by whoever forecasts steps.
"""

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from lorafleet_contracts.admin import StepsState

LEAST_STEPS = 500
"""Decoding steps below which a fit says nothing."""
LEAST_INDEPENDENCE = 0.02
"""Share of the ranks' variance that sequences do not explain below which the two can't be told apart."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step = `fixed` + `per_sequence` x sequences + `per_rank` x sum of the distinct adapters' ranks.

    `sequences`, `rank_sum` and `seconds` are the means of the steps that it was fitted to.
    """

    fixed: float
    per_sequence: float
    per_rank: float
    sequences: float
    rank_sum: float
    seconds: float

    def seconds_of(self, sequences: float, rank_sum: float) -> float:
        """A step's predicted duration."""
        return self.fixed + self.per_sequence * sequences + self.per_rank * rank_sum

    @property
    def penalty_percent(self) -> int:
        """The share of the fitted steps that the adapters took."""
        return min(max(round(100 * self.per_rank * self.rank_sum / self.seconds), 0), 99)


def add_steps(sums: Iterable[StepsState]) -> StepsState:
    """The sums of several replicas, or lives of one, as one."""
    names = list(StepsState.model_fields)
    rows = [[getattr(each, name) for name in names] for each in sums]
    return StepsState(**{name: sum(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})


def fit_steps(sums: StepsState) -> StepCost | None:
    """Least squares, or None where the steps were too few, or too alike to tell adapters from sequences."""
    count = sums.decode_steps
    if count < LEAST_STEPS:
        return None
    sequences, ranks, seconds = (each / count for each in (sums.sequences, sums.rank_sum, sums.decode_seconds))
    across_n = sums.sequences_squared / count - sequences**2
    across_r = sums.rank_squared / count - ranks**2
    both = sums.sequences_rank / count - sequences * ranks
    time_n = sums.seconds_sequences / count - seconds * sequences
    time_r = sums.seconds_rank / count - seconds * ranks
    if across_n <= 0 or across_r <= 0:
        return None
    free = across_r - both**2 / across_n
    if free < LEAST_INDEPENDENCE * across_r:
        return None
    per_rank = max((time_r - time_n * both / across_n) / free, 0.0)
    per_sequence = (time_n - per_rank * both) / across_n
    fixed = seconds - per_sequence * sequences - per_rank * ranks
    cost = StepCost(fixed, per_sequence, per_rank, sequences, ranks, seconds)
    return cost if all(math.isfinite(each) for each in astuple(cost)) else None
