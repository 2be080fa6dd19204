"""The same draws from logits on a GPU as from logits on the CPU."""

import pytest
import torch

from lorafleet_engine.messages import SamplingParams
from lorafleet_engine.runner.sampler import Draw
from tests.engine.support.sampling import sample

pytestmark = pytest.mark.gpu

PARAMS = [
    SamplingParams(9, temperature=0),
    SamplingParams(9, temperature=0.7, logprobs=3),
    SamplingParams(9, top_k=5),
    SamplingParams(9, top_p=0.8, min_p=0.1),
    SamplingParams(9, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    SamplingParams(9, temperature=0, repetition_penalty=1.3, logprobs=0),
]


def test_as_on_the_cpu() -> None:
    logits = torch.randn(60, 5000, generator=torch.Generator().manual_seed(4)) * 3
    draws = [Draw(PARAMS[number % len(PARAMS)], number, (1, 2, 3, 3), 2, 2) for number in range(60)]
    here, there = sample(logits, draws), sample(logits.cuda(), draws)
    assert [token and token.id for token in here] == [token and token.id for token in there]
    for ours, theirs in zip(here, there, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
