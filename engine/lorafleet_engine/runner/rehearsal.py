"""Steps that nobody asked for, run at the start so that nothing is compiled later. Used by runner.py.

They read and write the scratch page only and use a row of rank that is zeros.
"""

from collections.abc import Iterator

from lorafleet_engine.memory.geometry import SCRATCH_PAGE, pages_for_tokens
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import SamplingParams
from lorafleet_engine.runner.packing import ZERO_ROW
from lorafleet_engine.runner.sampler import Draw
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan, Work

NOTHING = StepPlan((), 0, ())
"""What a graph runs while it is captured: padding only."""
DRAWS = tuple(
    Draw(params, seed=0, tokens=(0,), prompt_length=1, position=0)
    for params in (SamplingParams(1, top_p=0.9, logprobs=1), SamplingParams(1, top_k=5, repetition_penalty=1.1))
)
"""Every kind of draw."""
FEW_TOKENS = 20


def rehearsal(most: int, sequences: int, *, adapters: bool) -> Iterator[StepPlan]:
    """Steps with short and long prompts (up to `most` tokens), first chunks and later ones, alone and beside decodes;
    also with `adapters`; of at most `sequences` sequences."""
    few = min(FEW_TOKENS, most // 2)
    for resident in (None, Resident("", 1, 0, (), (ZERO_ROW,))) if adapters else (None,):
        for chunks in ((few,), (most,), (few, most // 2)):
            for decodes in (count for count in (0, 1, 3) if count + len(chunks) <= sequences):
                works = [_work(resident, 1, 1) for _ in range(decodes)]
                works += [_work(resident, start, count) for start, count in zip((0, few), chunks, strict=False)]
                yield StepPlan(tuple(works), decodes, () if resident is None else (resident,))


def _work(resident: Resident | None, start: int, count: int) -> Work:
    sequence = Sequence("", [0] * (start + count), 1, adapter=resident)
    sequence.pages += [SCRATCH_PAGE] * pages_for_tokens(start + count)
    return Work(sequence, start, count, True)
