"""What decode steps take where adapters of many ranks share them: a forecast by which the operator splits rank classes,
and which the engine's benchmark holds against measured steps. Pure arithmetic; seconds, and units of rank.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

P99 = 2.3263
"""Standard deviations above the mean that 99 % of a normal variable stay below."""
ITERATIONS = 32


@dataclass(frozen=True, slots=True)
class StepModel:
    """What a decode step takes: `base_seconds`, and `seconds_per_rank` for each unit of rank of its distinct adapters.

    `measured` says whether the latter was seen in steps; else it is the bytes of a rank over the memory bandwidth at
    which the base's weights are read.
    """

    base_seconds: float
    seconds_per_rank: float
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Member:
    """An adapter's part in the steps of a set: its true rank, the tokens it generates per second on all replicas
    together, and on how many replicas it is."""

    rank: int
    tokens_per_s: float
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a set's steps would be: mean sum of co-batched ranks, and the pause that 99 % of tokens stay below."""

    rank_sum: float
    itl_p99: float


def model_of(mean_seconds: float, mean_ranks: float, bytes_per_rank: float, weights: int) -> StepModel:
    """What steps cost where only their mean is known: a rank's bytes are read at the pace of the base's `weights`."""
    if weights <= 0:
        return StepModel(mean_seconds, 0.0, measured=False)
    base = mean_seconds / (1.0 + mean_ranks * bytes_per_rank / weights)
    return StepModel(base, base * bytes_per_rank / weights, measured=False)


def ranks_in_step(members: Sequence[Member], replicas: int, step: float) -> tuple[float, float]:
    """Mean and variance of the co-batched ranks of one replica's steps of so many seconds.

    Requests arrive at random and each adapter uses its copies alike, so it is in a step when at least one of its
    sequences decodes, which by Little's law are tokens_per_s x step at a time.
    """
    mean = variance = 0.0
    for each in members:
        copies = min(max(each.copies, 1), replicas)
        present = -math.expm1(-each.tokens_per_s * step / copies) * copies / replicas
        mean += each.rank * present
        variance += each.rank**2 * present * (1.0 - present)
    return mean, variance


def forecast(members: Sequence[Member], replicas: int, model: StepModel) -> Forecast:
    """The steps of one replica of a set. They depend on the ranks in them and these on their length: iterated."""
    if not members or replicas < 1:
        return Forecast(0.0, model.base_seconds)
    step, mean, variance = model.base_seconds, 0.0, 0.0
    for _ in range(ITERATIONS):
        mean, variance = ranks_in_step(members, replicas, step)
        step = model.base_seconds + model.seconds_per_rank * mean
    most = sum(each.rank for each in members)
    worst = min(mean + P99 * math.sqrt(variance), float(most))
    return Forecast(mean, model.base_seconds + model.seconds_per_rank * worst)
