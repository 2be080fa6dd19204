"""One request as the scheduler sees it, and what it plans for a step."""

from dataclasses import dataclass, field

from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import FinishReason


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and answer so far. Once the planned steps have run the first `computed` tokens have keys and values, in
    `pages`.

    `in_flight` tokens after the last of `tokens` are promised by steps that are planned but not committed; `row` is
    where the last of them stands among its step's samples. `running` and `ended` say where the scheduler has it.
    """

    request_id: str
    tokens: list[int]
    max_new: int
    stops: frozenset[int] = frozenset()
    adapter: Resident | None = None
    prompt_length: int = field(init=False)
    arrival: int = -1
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    in_flight: int = 0
    row: int = -1
    running: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens, promised ones too, whose keys and values no step was planned for; 1 when decoding."""
        return len(self.tokens) + self.in_flight - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def ending(self) -> bool:
        """Whether the answer has its full length once what is in flight is known."""
        return self.in_flight > 0 and self.generated + self.in_flight >= self.max_new

    @property
    def idle(self) -> bool:
        """Whether nothing can be planned before what is in flight is known. (An unknown token is fed to the model from
        the device, as a single one only.)"""
        return self.in_flight > 0 and (self.pending > 1 or self.ending)


@dataclass(frozen=True, slots=True)
class Work:
    """Compute tokens [start, start + count) of a sequence; `samples` when its next token follows from them.

    A single token that is in flight is row `source` of the samples of the step before; -1 for tokens that are known.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    source: int = -1


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: single tokens first (`decodes` of them), then chunks of prompts; the distinct `adapters` they use."""

    works: tuple[Work, ...]
    decodes: int
    adapters: tuple[Resident, ...]

    @property
    def tokens(self) -> int:
        return sum(work.count for work in self.works)

    @property
    def rank_sum(self) -> int:
        return sum(adapter.rank for adapter in self.adapters)


@dataclass(frozen=True, slots=True)
class Advance:
    """What row `row` of a step's samples brought a sequence: its new token, and why it ended if it did."""

    row: int
    sequence: Sequence
    token: int | None
    finish: FinishReason | None
