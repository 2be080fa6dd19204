"""The margin rule: what it means that an engine's greedy answer is peft's.

Compared are all positions before the first one where the reference's two best logits differ by less than MARGIN, where
rounding may decide: the same tokens, their log-probabilities within TOLERANCE.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

MARGIN = 1e-3
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Expected:
    """A greedy answer of the reference, with the log-probability of each token and the lead of the best logit."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]

    @property
    def compared(self) -> int:
        """Positions before the first one that is too close to call."""
        return next((at for at, margin in enumerate(self.margins) if margin < MARGIN), len(self.margins))


@torch.inference_mode()
def greedy(
    model: nn.Module, prompts: Sequence[Sequence[int]], count: int, stops: frozenset[int] = frozenset()
) -> list[Expected]:
    """Up to `count` greedy tokens of a transformers model for each prompt; one ends with its first token of `stops`."""
    longest = max(map(len, prompts))
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    step = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    columns: list[tuple[list[int], list[float], list[float]]] = []
    cache = None
    for _ in range(count):
        output = model(
            input_ids=step, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        logits = output.logits[:, -1].float()
        best = logits.topk(2, dim=-1)
        chosen = best.indices[:, :1]
        logprobs = logits.log_softmax(-1).gather(1, chosen)[:, 0]
        columns.append((chosen[:, 0].tolist(), logprobs.tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()))
        step, positions = chosen, positions[:, -1:] + 1
        mask = torch.cat((mask, torch.ones_like(chosen)), dim=1)
    return [_until_stop(row, columns, stops) for row in range(len(prompts))]


def _until_stop(row: int, columns: list[tuple[list[int], list[float], list[float]]], stops: frozenset[int]) -> Expected:
    tokens = [column[0][row] for column in columns]
    end = next((at + 1 for at, token in enumerate(tokens) if token in stops), len(tokens))
    logprobs, margins = (tuple(column[field][row] for column in columns[:end]) for field in (1, 2))
    return Expected(tuple(tokens[:end]), logprobs, margins)


def difference(expected: Expected, tokens: Sequence[int], logprobs: Sequence[float]) -> str | None:
    """What breaks the margin rule, or None."""
    for at in range(expected.compared):
        if at >= len(tokens) or tokens[at] != expected.tokens[at]:
            return f"token {at}: {list(tokens[at : at + 1])} instead of {expected.tokens[at]}"
        if abs(logprobs[at] - expected.logprobs[at]) > TOLERANCE:
            return f"token {at}: log-probability {logprobs[at]} instead of {expected.logprobs[at]}"
    if expected.compared == len(expected.tokens) and len(tokens) != len(expected.tokens):
        return f"{len(tokens)} tokens instead of {len(expected.tokens)}"
    return None
