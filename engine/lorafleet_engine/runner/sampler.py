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
        """Whether tokens seen before count differently."""
        params = self.params
        return bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1

    @property
    def filtered(self) -> bool:
        """Whether only the most likely tokens may be drawn."""
        return self.params.top_k > 0 or self.params.top_p < 1


@torch.inference_mode()
def sample(logits: torch.Tensor, draws: Items[Draw]) -> list[Token | None]:
    """Return a token for each row of logits [S, vocab], None for a row that is not finite."""
    logits = logits.float()
    best, ids = logits.max(dim=-1)
    drawn = [number for number, draw in enumerate(draws) if not draw.plain]
    if drawn:
        ids[drawn] = _draw(logits[drawn], [draws[number] for number in drawn])
    told = [number for number, draw in enumerate(draws) if draw.params.logprobs is not None]
    logprobs = (
        dict(zip(told, _logprobs(logits[told], ids[told], [draws[n] for n in told]), strict=True)) if told else {}
    )
    finite, chosen = torch.isfinite(best).tolist(), ids.tolist()
    return [(logprobs.get(number) or Token(chosen[number])) if finite[number] else None for number in range(len(draws))]


def _logprobs(logits: torch.Tensor, chosen: torch.Tensor, draws: Items[Draw]) -> list[Token]:
    """The chosen tokens with their log-probabilities and those of as many of the best as each draw asks for."""
    logprobs = logits.log_softmax(dim=-1)
    own = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
    counts = [draw.params.logprobs or 0 for draw in draws]
    values, ids = logprobs.topk(max(counts))
    best = [tuple(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    return [
        Token(token, logprob, top[:count])
        for token, logprob, top, count in zip(chosen.tolist(), own, best, counts, strict=True)
    ]


def _draw(rows: torch.Tensor, draws: Items[Draw]) -> torch.Tensor:
    """Token ids [n] for rows [n, vocab], which are overwritten."""
    for number, draw in enumerate(draws):
        if draw.penalised:
            _penalise(rows[number], draw)
    chosen = rows.argmax(dim=-1)
    for filtered in (False, True):
        group = [n for n, draw in enumerate(draws) if draw.params.temperature > 0 and draw.filtered == filtered]
        if group:
            chosen[group] = _invert(rows[group], [draws[number] for number in group], filtered)
    return chosen


def _invert(rows: torch.Tensor, draws: Items[Draw], filtered: bool) -> torch.Tensor:
    """Where each draw's random number falls in the cumulative distribution of what may be drawn."""
    settings = [
        (d.params.temperature, d.params.top_p, d.params.min_p, uniform(d.seed, len(d.tokens) - d.prompt_length))
        for d in draws
    ]
    columns = torch.tensor(settings, device=rows.device, dtype=torch.float64)
    temperature, top_p, min_p, chance = columns[:, :, None].unbind(1)
    chances = torch.softmax((rows - rows.amax(dim=-1, keepdim=True)).double() / temperature, dim=-1)
    ids = None
    if filtered:
        chances, ids = _candidates(chances, [draw.params.top_k for draw in draws], top_p)
    chances = torch.where(chances >= min_p * chances.amax(dim=-1, keepdim=True), chances, 0)
    total = chances.cumsum(dim=-1)
    place = torch.searchsorted(total, total[:, -1:] * chance, right=True).clamp(max=total.shape[1] - 1)
    return (place if ids is None else ids.gather(1, place))[:, 0]


def _candidates(chances: torch.Tensor, top_k: Items[int], top_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply top_k, then top_p: chances (zero where dropped) in falling order, and their token ids."""
    size = chances.shape[1]
    limit = torch.tensor([k or size for k in top_k], device=chances.device)[:, None].clamp(max=size)
    values, ids = chances.topk(min(max(*top_k, FIRST_CANDIDATES), size))
    wanted = torch.where(limit < size, 0, top_p)
    if bool((values.sum(dim=-1, keepdim=True) < wanted).any()):
        values, ids = chances.sort(dim=-1, descending=True)
    values = torch.where(torch.arange(values.shape[1], device=values.device) < limit, values, 0)
    values = values / torch.where(limit < size, values.sum(dim=-1, keepdim=True), 1)
    before = values.cumsum(dim=-1) - values
    return torch.where((before < top_p) | (before == 0), values, 0), ids


def _penalise(row: torch.Tensor, draw: Draw) -> None:
    """Change row [vocab] in place. repetition_penalty counts the prompt too (Keskar et al., 2019); presence and
    frequency count the answer only."""
    params = draw.params
    if params.repetition_penalty != 1:
        seen = torch.tensor(sorted(set(draw.tokens)), device=row.device)
        value = row[seen]
        row[seen] = torch.where(value > 0, value / params.repetition_penalty, value * params.repetition_penalty)
    answer = draw.tokens[draw.prompt_length :]
    if answer and (params.presence_penalty or params.frequency_penalty):
        counts = torch.bincount(torch.tensor(answer, device=row.device), minlength=row.numel())
        row -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on both arguments only."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return math.ldexp(int.from_bytes(digest, "little") >> 11, -53)
