"""Tokens from logits. Called by loop.py after every step.

A request's draw depends on its own logits, seed and position only, never on its neighbours: the random number of each
position is a hash of both, turned into a token by the inverse of the cumulative distribution.
"""

import hashlib
import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from lorafleet_engine.messages import SamplingParams, Token

FIRST_CANDIDATES = 1024
"""Tokens looked at for top_p before all of the vocabulary is sorted."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row of logits is drawn with; `tokens` is prompt and answer so far."""

    params: SamplingParams
    seed: int
    tokens: Items[int]
    prompt_length: int

    @property
    def plain(self) -> bool:
        """Whether the answer is simply the most likely token."""
        return self.params.temperature == 0 and not self.penalised

    @property
    def penalised(self) -> bool:
        params = self.params
        return bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1


@torch.inference_mode()
def sample(logits: torch.Tensor, draws: Items[Draw]) -> list[Token | None]:
    """Return a token for each row of logits [S, vocab], None for a row that is not finite."""
    logits = logits.float()
    best, ids = logits.max(dim=-1)
    finite = torch.isfinite(best).tolist()
    greedy: list[int] = ids.tolist()
    tokens: list[Token | None] = []
    for number, draw in enumerate(draws):
        if not finite[number]:
            tokens.append(None)
            continue
        row = logits[number]
        chosen = greedy[number] if draw.plain else _draw(row, draw)
        tokens.append(Token(chosen) if draw.params.logprobs is None else _with_logprobs(row, chosen, draw.params))
    return tokens


def _with_logprobs(row: torch.Tensor, chosen: int, params: SamplingParams) -> Token:
    logprobs = row.log_softmax(dim=-1)
    top: tuple[tuple[int, float], ...] = ()
    if params.logprobs:
        values, ids = logprobs.topk(params.logprobs)
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Token(chosen, float(logprobs[chosen]), top)


def _draw(row: torch.Tensor, draw: Draw) -> int:
    params = draw.params
    if draw.penalised:
        row = _penalise(row, draw)
    if params.temperature == 0:
        return int(row.argmax())
    probabilities = torch.softmax((row - row.max()).double() / params.temperature, dim=-1)
    candidates, ids = _candidates(probabilities, params)
    if params.min_p > 0:
        candidates = torch.where(candidates >= params.min_p * candidates.max(), candidates, 0)
    total = candidates.cumsum(dim=-1)
    target = total[-1] * uniform(draw.seed, len(draw.tokens) - draw.prompt_length)
    place = int(torch.searchsorted(total, target, right=True).clamp(max=total.numel() - 1))
    return place if ids is None else int(ids[place])


def _candidates(probabilities: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Apply top_k, then top_p: what is left of the probabilities, and their ids (None = all in order)."""
    size = probabilities.numel()
    if not params.top_k and params.top_p >= 1:
        return probabilities, None
    values, ids = probabilities.topk(min(params.top_k or FIRST_CANDIDATES, size))
    if params.top_p >= 1:
        return values, ids
    if params.top_k:
        values = values / values.sum()
    elif float(values.sum()) < params.top_p:
        values, ids = probabilities.sort(descending=True)
    before = values.cumsum(dim=-1) - values
    return torch.where((before < params.top_p) | (before == 0), values, 0), ids


def _penalise(row: torch.Tensor, draw: Draw) -> torch.Tensor:
    """repetition_penalty counts the prompt too (Keskar et al., 2019); presence and frequency the answer only."""
    params, row = draw.params, row.clone()
    if params.repetition_penalty != 1:
        seen = torch.tensor(sorted(set(draw.tokens)), device=row.device)
        value = row[seen]
        row[seen] = torch.where(value > 0, value / params.repetition_penalty, value * params.repetition_penalty)
    answer = draw.tokens[draw.prompt_length :]
    if answer and (params.presence_penalty or params.frequency_penalty):
        counts = torch.bincount(torch.tensor(answer, device=row.device), minlength=row.numel())
        row -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    return row


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on both arguments only."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return math.ldexp(int.from_bytes(digest, "little") >> 11, -53)
