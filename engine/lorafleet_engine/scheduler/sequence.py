"""One request as the scheduler sees it, and what it plans for a step."""

from dataclasses import dataclass, field

from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import FinishReason


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and answer so far. The first `computed` of `tokens` have keys and values, in `pages`."""

    request_id: str
    tokens: list[int]
    max_new: int
    stops: frozenset[int] = frozenset()
    adapter: Resident | None = None
    prompt_length: int = field(init=False)
    arrival: int = -1
    computed: int = 0
    pages: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still to be computed; 1 when decoding."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Work:
    """Compute tokens [start, start + count) of a sequence; `samples` when its next token follows from them."""

    sequence: Sequence
    start: int
    count: int
    samples: bool


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
    """What a step brought one sequence: its new token, and why it ended if it did."""

    sequence: Sequence
    token: int | None
    finish: FinishReason | None
