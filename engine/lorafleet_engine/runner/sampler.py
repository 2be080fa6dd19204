"""Tokens from logits, without ever waiting for the device. Used by runner.py, in and behind every step.

The most likely token of every row is found with the step itself (in its graph); rows that want more are drawn behind
it. A request's draw depends on its own logits, seed and position only, never on its neighbours: the random number of
each position is a hash of both, turned into a token by the inverse of the cumulative distribution.
"""

import hashlib
import math
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch

from lorafleet_engine.kernels.best_token import best_token
from lorafleet_engine.kernels.draw_token import draw_token
from lorafleet_engine.messages import SamplingParams, Token
from lorafleet_engine.runner.staging import Returning, upload

DRAWN = 64
"""Rows drawn at a time: what that takes is in the memory budget."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row of logits is drawn with, for the answer's token number `position`; `tokens` are prompt and answer so
    far, but for the one in flight, if row `source` (>= 0) of the step before draws that."""

    params: SamplingParams
    seed: int
    tokens: Items[int]
    prompt_length: int
    position: int
    source: int = -1


def plain(params: SamplingParams) -> bool:
    """Whether an answer is simply the most likely tokens, and nothing else is told of them."""
    return params.temperature == 0 and params.logprobs is None and not penalised(params)


def penalised(params: SamplingParams) -> bool:
    """Whether tokens seen before count differently."""
    return bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1


class Sampled:
    """The tokens of a step, on their way to the host. `told` are the draws, by row, that ask for log-probabilities."""

    def __init__(self, chosen: torch.Tensor, told: Mapping[int, Draw], extra: tuple[torch.Tensor, ...]) -> None:
        self._returning = Returning(chosen, *extra)
        self._told = told

    @property
    def ended(self) -> bool:
        """Whether wait returns at once."""
        return self._returning.ended

    def wait(self) -> tuple[list[int | None], dict[int, Token]]:
        """Wait for them: the token of each row, None for a row that was not finite, and those with more to tell."""
        chosen, *extra = self._returning.wait()
        tokens = [None if number < 0 else number for number in chosen.tolist()]
        rows: dict[int, Token] = {}
        columns = (part.tolist() for part in extra)
        for (row, draw), own, values, ids in zip(self._told.items(), *columns, strict=True) if extra else ():
            token, count = tokens[row], draw.params.logprobs or 0
            if token is not None:
                rows[row] = Token(token, own, tuple(zip(ids[:count], values[:count], strict=True)))
        return tokens, rows


class Sampler:
    """Chooses tokens into `sampled` [rows] int32, where the next step finds them."""

    def __init__(self, sampled: torch.Tensor) -> None:
        self._sampled = sampled
        self._told = torch.empty_like(sampled)
        self._arrived = torch.zeros_like(sampled)

    def choose(self, logits: torch.Tensor) -> None:
        """The most likely token of each row of logits [S, vocab]. Device operations only, for graphs."""
        count = logits.shape[0]
        best_token(logits, self._sampled[:count], self._told[:count], self._arrived)

    def before(self, draws: Mapping[int, Draw]) -> torch.Tensor | None:
        """To be called before choose: the last step's tokens, if one of them decides how a row is drawn."""
        needed = any(draw.source >= 0 and penalised(draw.params) for draw in draws.values())
        return self._sampled.clone() if needed else None

    @torch.inference_mode()
    def finish(self, logits: torch.Tensor, draws: Mapping[int, Draw], before: torch.Tensor | None = None) -> Sampled:
        """After choose: draw the rows of `draws` (those that are not plain) and send all tokens to the host."""
        count, device = logits.shape[0], logits.device
        drawn = {row: draw for row, draw in draws.items() if draw.params.temperature > 0 or penalised(draw.params)}
        if drawn:
            rows, each = upload(list(drawn), torch.int64, device), list(drawn.values())
            parts = zip(torch.split(rows, DRAWN), range(0, len(each), DRAWN), strict=True)
            found = [_draw(logits.index_select(0, part).float(), each[at : at + DRAWN], before) for part, at in parts]
            ids = torch.cat(found).int()
            self._sampled.index_copy_(0, rows, ids)
            finite = self._told.index_select(0, rows) >= 0
            self._told.index_copy_(0, rows, torch.where(finite, ids, -1))
        told = {row: draw for row, draw in draws.items() if draw.params.logprobs is not None}
        extra: tuple[torch.Tensor, ...] = ()
        if told:
            rows = upload(list(told), torch.int64, device)
            most = max(draw.params.logprobs or 0 for draw in told.values())
            columns = [
                _logprobs(logits.index_select(0, part).float(), self._sampled.index_select(0, part), most)
                for part in torch.split(rows, DRAWN)
            ]
            extra = tuple(map(torch.cat, zip(*columns, strict=True)))
        return Sampled(self._told[:count], told, extra)


def _logprobs(logits: torch.Tensor, chosen: torch.Tensor, most: int) -> tuple[torch.Tensor, ...]:
    """Log-probabilities of the chosen tokens [n]; values and ids of the `most` best [n, most]."""
    logprobs = logits.log_softmax(dim=-1)
    values, ids = logprobs.topk(most)
    return logprobs.gather(1, chosen.long()[:, None])[:, 0], values, ids


def _draw(rows: torch.Tensor, draws: Items[Draw], before: torch.Tensor | None) -> torch.Tensor:
    """Token ids [n] for rows [n, vocab], which are overwritten; `before` are the tokens of the step before."""
    changed = [number for number, draw in enumerate(draws) if penalised(draw.params)]
    if changed:
        places = upload(changed, torch.int64, rows.device)
        rows.index_copy_(0, places, _penalise(rows.index_select(0, places), [draws[n] for n in changed], before))
    chosen = rows.argmax(dim=-1)
    for limited in (False, True):
        group = [
            n for n, draw in enumerate(draws) if draw.params.temperature > 0 and (draw.params.top_k > 0) is limited
        ]
        if group:
            places = upload(group, torch.int64, rows.device)
            own = rows if len(group) == len(draws) else rows.index_select(0, places)
            chosen.index_copy_(0, places, _invert(own, [draws[number] for number in group], limited=limited))
    return chosen


def _invert(rows: torch.Tensor, draws: Items[Draw], *, limited: bool) -> torch.Tensor:
    """Where each draw's random number falls in the cumulative distribution of what may be drawn: of all tokens, or of
    the top_k likeliest (`limited`)."""
    settings = [(d.params.temperature, d.params.top_p, d.params.min_p, uniform(d.seed, d.position)) for d in draws]
    columns = upload(settings, torch.float64, rows.device)
    if not limited:
        return draw_token(rows, columns)
    temperature, top_p, min_p, chance = columns[:, :, None].unbind(1)
    top_k = [min(draw.params.top_k, rows.shape[1]) for draw in draws]
    rows, ids = rows.topk(max(top_k))
    chances = torch.softmax((rows - rows.amax(dim=-1, keepdim=True)).double() / temperature, dim=-1)
    chances = _candidates(chances, upload(top_k, torch.int64, rows.device)[:, None], top_p)
    chances = torch.where(chances >= min_p * chances.amax(dim=-1, keepdim=True), chances, 0)
    total = chances.cumsum(dim=-1)
    place = torch.searchsorted(total, total[:, -1:] * chance, right=True).clamp(max=total.shape[1] - 1)
    return ids.gather(1, place)[:, 0]


def _candidates(chances: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Apply top_k, then top_p, to chances in falling order: zero where dropped."""
    place = torch.arange(chances.shape[1], device=chances.device)
    chances = torch.where(place < top_k, chances, 0)
    chances = chances / chances.sum(dim=-1, keepdim=True)
    before = chances.cumsum(dim=-1) - chances
    return torch.where((before < top_p) | (place == 0), chances, 0)


def _penalise(rows: torch.Tensor, draws: Items[Draw], before: torch.Tensor | None) -> torch.Tensor:
    """Rows [n, vocab] with their tokens so far counted. repetition_penalty counts the prompt too (Keskar et al., 2019);
    presence and frequency count the answer only."""
    count, vocab = rows.shape
    tokens = [np.asarray(draw.tokens, dtype=np.int64) + number * vocab for number, draw in enumerate(draws)]
    answers = [own[draw.prompt_length :] for own, draw in zip(tokens, draws, strict=True)]
    seen, answered = (upload(np.concatenate(places), torch.int64, rows.device) for places in (tokens, answers))
    flying = [(draw.source, number * vocab) for number, draw in enumerate(draws) if draw.source >= 0]
    if flying and before is not None:
        sources, starts = upload(flying, torch.int64, rows.device).unbind(1)
        places = before.index_select(0, sources) + starts
        seen, answered = torch.cat((seen, places)), torch.cat((answered, places))
    counted = torch.zeros(count * vocab, dtype=torch.bool, device=rows.device).index_fill_(0, seen, value=True)
    ones = torch.ones(len(answered), device=rows.device)
    counts = torch.zeros(count * vocab, device=rows.device).index_add_(0, answered, ones).view_as(rows)
    settings = [(d.params.repetition_penalty, d.params.presence_penalty, d.params.frequency_penalty) for d in draws]
    repetition, presence, frequency = upload(settings, torch.float32, rows.device)[:, :, None].unbind(1)
    repeated = torch.where(rows > 0, rows / repetition, rows * repetition)
    rows = torch.where(counted.view_as(rows), repeated, rows)
    return rows - (frequency * counts + presence * (counts > 0))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on both arguments only."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return math.ldexp(int.from_bytes(digest, "little") >> 11, -53)
