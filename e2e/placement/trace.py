"""What all arms are given alike: adapters with their bytes, replicas' budgets, and one stream of requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lorafleet_operator.simulation.traffic import poisson_times, zipf_weights

BYTES_PER_RANK = 5_046_272
"""All seven projections of Qwen2.5-7B in bfloat16."""
RANKS = (8, 16, 32, 64, 128)
EVEN_SHARE = 0.6
"""A replica's budget for adapters, as a share of what it would have of all adapters' bytes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is about; times in seconds, `rps` in requests a second, `service` the mean length of a request."""

    zipf: float
    adapters: int = 1000
    replicas: int = 16
    rps: float = 40.0
    service: float = 2.0
    warm: float = 7200.0
    measured: float = 7200.0
    seed: int = 6

    @property
    def seconds(self) -> float:
        """The whole run."""
        return self.warm + self.measured


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in their order: when, for which adapter, and how long each takes on a replica. Sizes are bytes."""

    sizes: Sequence[int]
    budget: int
    times: Sequence[float]
    adapters: Sequence[int]
    services: Sequence[float]


def make_trace(setting: Setting) -> Trace:
    """Ranks in equal parts at random over popularities, Poisson arrivals, exponential lengths."""
    random = np.random.default_rng(setting.seed)
    sizes = [BYTES_PER_RANK * int(rank) for rank in random.permutation(np.resize(RANKS, setting.adapters))]
    popularity = random.permutation(zipf_weights(setting.adapters, setting.zipf))
    times = poisson_times(setting.rps, setting.seconds, random)
    return Trace(
        sizes=sizes,
        budget=int(sum(sizes) * EVEN_SHARE / setting.replicas),
        times=times.tolist(),
        adapters=random.choice(setting.adapters, len(times), p=popularity).tolist(),
        services=random.exponential(setting.service, len(times)).tolist(),
    )
