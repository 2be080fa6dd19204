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
def greedy(model: nn.Module, prompt: Sequence[int], count: int, stops: frozenset[int] = frozenset()) -> Expected:
    """Up to `count` greedy tokens of a transformers model; it ends with the first token of `stops`."""
    tokens: list[int] = []
    logprobs: list[float] = []
    margins: list[float] = []
    step, cache = torch.tensor([list(prompt)]), None
    while len(tokens) < count and not (tokens and tokens[-1] in stops):
        output = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits = output.logits[0, -1].float()
        best = logits.topk(2)
        tokens.append(int(best.indices[0]))
        logprobs.append(float(logits.log_softmax(-1)[tokens[-1]]))
        margins.append(float(best.values[0] - best.values[1]))
        step = torch.tensor([[tokens[-1]]])
    return Expected(tuple(tokens), tuple(logprobs), tuple(margins))


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
