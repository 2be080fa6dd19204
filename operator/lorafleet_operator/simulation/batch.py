"""How an engine's steps share its time among requests: continuous batching. Called by engines.py and arms.py.

Every step gives each running request one token, and takes longer the more of them and the larger the ranks of their
distinct adapters: the law that `core/stepcost.py` fits to what real engines count. Times are epoch seconds of the
simulated clock. Between two events all steps are alike, so only beginnings and ends are computed.
"""

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from lorafleet_contracts.admin import StepsState
from lorafleet_contracts.forecast import Member, ranks_in_step

TOKEN_SECONDS = 0.02
"""What a full step is assumed to take."""
SEQUENCE_SHARE = 0.0046
"""What one more request adds to a step, in the step's fixed part: 3.70 ms for one, 4.76 ms for 64 on an H200 with the
7B base (docs/benchmarks/engine-h200.json)."""
ROUNDING = 1e-3
"""Of a step, that sums of times are off: epoch seconds have seven digits behind the point."""
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step = `fixed` + `per_sequence` x requests + `per_rank` x ranks of their distinct adapters.

    At `most` so many requests are in it; others queue.
    """

    fixed: float
    per_sequence: float
    per_rank: float
    most: int

    def seconds_of(self, sequences: int, ranks: int) -> float:
        """One step."""
        return self.fixed + self.per_sequence * sequences + self.per_rank * ranks


def step_time(capacity: float, base_capacity: float, answer_tokens: float, members: Sequence[Member]) -> StepTime:
    """Steps by which a replica does `capacity` requests per second when full, `base_capacity` without adapters.

    Answers have so many tokens in the mean. A member's `tokens_per_s` is its share of all requests: the ranks of a full
    step follow as in the forecast by which the operator splits classes, and what they take is what adapters cost.
    """
    most = max(1, round(capacity * answer_tokens * TOKEN_SECONDS))
    full, plain = (most / (rate * answer_tokens) for rate in (capacity, base_capacity))
    ranks, _ = ranks_in_step(members, 1, float(most))
    fixed = plain / (1 + SEQUENCE_SHARE * most)
    return StepTime(fixed, SEQUENCE_SHARE * fixed, (full - plain) / ranks if ranks else 0.0, most)


@dataclass(slots=True)
class Answers:
    """Of all requests that were answered: seconds until the first step, and until the last. `broken` are those that a
    lost replica had."""

    waits: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    broken: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One request: tokens of its prompt and of its answer, `rank` of its adapter (0: none), for whom (`usage`)."""

    usage: tuple[str, str]
    prompt: int
    answer: int
    rank: int
    at: float


class Batch:
    """The requests of one engine: on their way (their adapter is coming), waiting, running."""

    def __init__(self, step: StepTime, answers: Answers) -> None:
        self._step = step
        self._answers = answers
        self._number = count()
        self._coming: list[tuple[float, int, Asked]] = []
        self._waiting: deque[Asked] = deque()
        self._running: list[tuple[float, int, Asked]] = []
        self._adapters: Counter[str] = Counter()
        self._ranks = 0
        self._now = 0.0
        self._steps = 0.0
        self._seconds = step.seconds_of(0, 0)
        self._next = NEVER
        self._counts = [0] * 6
        self._times = [0.0] * 3

    def __len__(self) -> int:
        return len(self._coming) + len(self._waiting) + len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that are in no step because the steps are full."""
        return len(self._waiting)

    def add(self, asked: Asked, extra: float) -> None:
        """Take a request whose adapter takes `extra` seconds to come; what ends before must have been taken already."""
        heapq.heappush(self._coming, (asked.at + extra, next(self._number), asked))
        self._next = min(self._next, asked.at + extra)

    def advance(self, until: float) -> Sequence[Asked]:
        """Let time pass; returns the requests that have ended by `until`."""
        if until < self._next:
            return ()
        ended: list[Asked] = []
        while (moment := self._next) <= until and moment < NEVER:
            self._run(moment)
            while self._coming and self._coming[0][0] <= moment:
                self._waiting.append(heapq.heappop(self._coming)[2])
            while self._running and self._running[0][0] <= self._steps + ROUNDING:
                ended.append(self._end(moment))
            while self._waiting and len(self._running) < self._step.most:
                self._begin(self._waiting.popleft(), moment)
            self._seconds = self._step.seconds_of(len(self._running), self._ranks)
            ends = self._end_of(self._running[0][0]) if self._running else NEVER
            self._next = min(ends, self._coming[0][0] if self._coming else NEVER)
        return ended

    def finish(self) -> None:
        """Answer what is there."""
        self.advance(NEVER)

    def lose(self) -> None:
        """Break off what is there."""
        self._answers.broken += len(self)

    def sums(self, now: float) -> StepsState:
        """What an engine counts of its steps."""
        self._run(max(now, self._now))
        steps, sequences, ranks, squared, ranks_squared, both = self._counts
        seconds, times, times_ranks = self._times
        return StepsState(
            steps=steps,
            seconds=seconds,
            decode_steps=steps,
            decode_seconds=seconds,
            sequences=sequences,
            rank_sum=ranks,
            sequences_squared=squared,
            rank_squared=ranks_squared,
            sequences_rank=both,
            seconds_sequences=times,
            seconds_rank=times_ranks,
        )

    def _run(self, until: float) -> None:
        """Count the steps until then, all of them with the same requests; what is begun counts once it is whole."""
        seconds, self._now = until - self._now, until
        n, ranks = len(self._running), self._ranks
        if not n:
            return
        self._steps += seconds / self._seconds
        whole = int(self._steps) - self._counts[0]
        if whole <= 0:
            return
        for place, term in enumerate((1, n, ranks, n * n, ranks * ranks, n * ranks)):
            self._counts[place] += whole * term
        for place, term in enumerate((1, n, ranks)):
            self._times[place] += whole * self._seconds * term

    def _end_of(self, last: float) -> float:
        """When a running request has had its `last` step, if nothing else happens."""
        return self._now + max(last - self._steps, 0.0) * self._seconds

    def _begin(self, asked: Asked, now: float) -> None:
        self._answers.waits.append(now - asked.at)
        version = asked.usage[1]
        if not self._adapters[version]:
            self._ranks += asked.rank
        self._adapters[version] += 1
        heapq.heappush(self._running, (self._steps + asked.answer, next(self._number), asked))

    def _end(self, now: float) -> Asked:
        asked = heapq.heappop(self._running)[2]
        self._answers.latencies.append(now - asked.at)
        version = asked.usage[1]
        self._adapters[version] -= 1
        if not self._adapters[version]:
            self._ranks -= asked.rank
            del self._adapters[version]
        return asked
