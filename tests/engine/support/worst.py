"""The steps that take the most memory: full of tokens, adapters, samples and draws. They use the scratch page only."""

from collections.abc import Iterator, Mapping

from lorafleet_engine.memory.geometry import SCRATCH_PAGE, pages_for_tokens
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import SamplingParams, StepLimits
from lorafleet_engine.runner.packing import ZERO_ROW
from lorafleet_engine.runner.sampler import Draw
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan, Work

PARAMS = (
    SamplingParams(9, top_p=0.9, logprobs=20),
    SamplingParams(9, repetition_penalty=1.2, presence_penalty=0.1, top_k=50),
    SamplingParams(9, temperature=0.7, min_p=0.01),
)


def worst_steps(limits: StepLimits, length: int) -> Iterator[tuple[StepPlan, Mapping[int, Draw]]]:
    """Decodes at full length with every adapter and none; prompts beside them that fill the step: one, and as many as
    there may be."""
    count = min(limits.distinct_adapters, limits.sequences)
    rank = limits.rank_sum // count
    rows = [(owner, *(ZERO_ROW,) * (rank - 1)) for owner in range(1, count + 1)]
    residents = [Resident(str(own[0]), rank, 0, (), own) for own in rows]
    most = limits.sequences
    for chunks in (0, 1, most // 2, most):
        decodes = most - chunks
        spare = limits.tokens - decodes
        for adapters in ((), tuple(residents)):
            works = [_work(adapters, row, length - 1, 1) for row in range(decodes)]
            sizes = [spare // chunks] * chunks if chunks else []
            works += [_work(adapters, row, 0 if chunks > 1 else length - size, size) for row, size in enumerate(sizes)]
            plan = StepPlan(tuple(works), decodes, adapters)
            for params in PARAMS:
                draws = {row: Draw(params, row, (1, 2, 3), 2, 1) for row in range(len(works))}
                yield plan, draws


def _work(adapters: tuple[Resident, ...], row: int, start: int, count: int) -> Work:
    adapter = adapters[row % len(adapters)] if adapters else None
    sequence = Sequence(str(row), [0] * (start + count), 1, adapter=adapter)
    sequence.pages += [SCRATCH_PAGE] * pages_for_tokens(start + count)
    return Work(sequence, start, count, True)
