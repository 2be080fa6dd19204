"""One request as the scheduler sees it, and what it plans for a step."""

from dataclasses import dataclass, field

from lorafleet_engine.memory.prefix import Chain
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import FinishReason


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and answer so far. Once the planned steps have run the first `computed` tokens have keys and values, in
    `pages`.

    `in_flight` tokens after the last of `tokens` are promised by steps that are planned but not committed; `row` is
    where the last of them stands among its step's samples. With `end` tokens its answer has its full length. `running`
    and `ended` say where the scheduler has it; each time that it begins to run is a `stay`, in which `pages` only grows
    at its end. `cached` tokens of the prompt were not computed for it, as the prefix cache had them; the cache knows
    its first `known` blocks, named by `chain`.
    """

    request_id: str
    tokens: list[int]
    max_new: int
    stops: frozenset[int] = frozenset()
    adapter: Resident | None = None
    tenant: str = ""
    weight: float = 1
    prompt_length: int = field(init=False)
    end: int = field(init=False)
    arrival: int = -1
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    in_flight: int = 0
    row: int = -1
    running: bool = False
    ended: bool = False
    stay: int = 0
    chain: Chain | None = None
    known: int = 0
    cached: int = 0

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.end = self.prompt_length + self.max_new

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
        return self.in_flight > 0 and len(self.tokens) + self.in_flight >= self.end


@dataclass(slots=True, eq=False)
class Work:
    """Compute tokens [start, start + count) of a sequence; `samples` when its next token follows from them.

    A single token that is in flight is row `source` of the samples of the step before; -1 for tokens that are known.
    `stay` is the sequence's. Nobody changes a work; not frozen, as hundreds are made a step, at a third of the cost.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    source: int = -1
    stay: int = 0


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


@dataclass(slots=True, eq=False)
class Advance:
    """What row `row` of a step's samples brought a sequence: its new token, and why it ended if it did."""

    row: int
    sequence: Sequence
    token: int | None
    finish: FinishReason | None
