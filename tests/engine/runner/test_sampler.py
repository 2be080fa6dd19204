"""Sampling: the distribution asked for, the same draw for the same seed whoever else is drawn."""

from collections import Counter
from typing import Any

import pytest
import torch

from lorafleet_engine.messages import SamplingParams
from lorafleet_engine.runner.sampler import Draw, uniform
from tests.engine.support.sampling import sample

LOGITS = torch.tensor([2.0, 0.0, 1.0, -1.0, 1.5])


def draw(seed: int = 0, tokens: tuple[int, ...] = (), prompt: int = 0, **params: Any) -> Draw:
    return Draw(SamplingParams(100, **params), seed, tokens, prompt, len(tokens) - prompt)


def frequencies(logits: torch.Tensor, count: int = 4000, **params: Any) -> torch.Tensor:
    rows = logits.expand(count, -1)
    tokens = sample(rows, [draw(seed, **params) for seed in range(count)])
    counts = Counter(token.id for token in tokens if token is not None)
    return torch.tensor([counts[number] / count for number in range(logits.numel())])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(temperature: float) -> None:
    expected = (LOGITS / temperature).softmax(-1)
    torch.testing.assert_close(frequencies(LOGITS, temperature=temperature), expected, atol=0.03, rtol=0)


def test_greedy() -> None:
    assert [token and token.id for token in sample(LOGITS[None], [draw(temperature=0)])] == [0]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, [0]),
        ({"top_k": 3}, [0, 2, 4]),
        ({"top_k": 50}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.01}, [0]),
        ({"top_p": 0.7}, [0, 4]),
        ({"min_p": 0.3}, [0, 2, 4]),
        ({"top_k": 4, "top_p": 0.9, "min_p": 0.5}, [0, 4]),
    ],
)
def test_filters(params: dict[str, Any], kept: list[int]) -> None:
    expected = torch.zeros(5)
    expected[kept] = LOGITS[kept].softmax(-1)
    torch.testing.assert_close(frequencies(LOGITS, **params), expected, atol=0.03, rtol=0)


def test_top_p_looks_at_all_tokens() -> None:
    flat = torch.zeros(4096)
    tokens = sample(flat.expand(200, -1), [draw(seed, top_p=0.9) for seed in range(200)])
    assert len({token.id for token in tokens if token is not None}) > 150


def test_seed_and_position_decide_whatever_the_neighbours() -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"top_k": 7},
        {"temperature": 0},
        {"top_p": 0.8, "logprobs": 2},
        {"repetition_penalty": 1.5, "min_p": 0.05},
        {"temperature": 0, "presence_penalty": 1.0, "logprobs": 0},
        {"top_k": 20, "top_p": 0.5, "temperature": 2.0},
    ]
    rows = torch.randn(77, 3000, generator=torch.Generator().manual_seed(1))
    draws = [draw(seed, tokens=tuple(range(seed)), prompt=0, **kinds[seed % 7]) for seed in range(77)]
    together = sample(rows, draws)
    alone = [sample(rows[number : number + 1], [draws[number]])[0] for number in range(77)]
    assert together == alone
    assert sample(rows[::2], draws[::2]) == together[::2]


def test_uniform_is_uniform_and_differs() -> None:
    values = torch.tensor([uniform(seed, position) for seed in range(40) for position in range(40)])
    assert len(set(values.tolist())) == 1600
    assert 0.47 < values.mean() < 0.53
    assert values.min() >= 0
    assert values.max() < 1


def test_repetition_penalty_counts_the_prompt() -> None:
    answer = sample(LOGITS[None], [draw(tokens=(0,), prompt=1, temperature=0, repetition_penalty=2.0)])
    assert answer[0] is not None
    assert answer[0].id == 4
    negative = torch.tensor([[-1.0, -1.5]])
    assert [
        t and t.id for t in sample(negative, [draw(tokens=(0,), prompt=1, temperature=0, repetition_penalty=2.0)])
    ] == [1]


def test_presence_and_frequency_count_the_answer_only() -> None:
    tokens = (4, 0, 0)
    assert [
        t and t.id for t in sample(LOGITS[None], [draw(tokens=tokens, prompt=1, temperature=0, presence_penalty=0.4)])
    ] == [0]
    assert [
        t and t.id for t in sample(LOGITS[None], [draw(tokens=tokens, prompt=1, temperature=0, frequency_penalty=0.4)])
    ] == [4]
    assert [
        t and t.id for t in sample(LOGITS[None], [draw(tokens=(0, 0), prompt=2, temperature=0, frequency_penalty=2)])
    ] == [0]


def test_logprobs_are_the_models_own() -> None:
    logprobs = LOGITS.log_softmax(-1)
    (token,) = sample(LOGITS[None], [draw(seed=3, temperature=3.0, logprobs=2, top_k=2)])
    assert token is not None
    assert token.logprob == pytest.approx(float(logprobs[token.id]))
    assert [number for number, _ in token.top] == [0, 4]
    assert [value for _, value in token.top] == pytest.approx(logprobs[[0, 4]].tolist())
    (bare,) = sample(LOGITS[None], [draw(temperature=0, logprobs=0)])
    assert bare is not None
    assert (bare.logprob, bare.top) == (pytest.approx(float(logprobs[0])), ())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_row_that_is_not_finite_has_no_token(value: float) -> None:
    rows = LOGITS.repeat(2, 1)
    rows[0, 2] = value
    tokens = sample(rows, [draw(temperature=0), draw(temperature=0)])
    assert tokens[0] is None
    assert tokens[1] is not None
