"""The sampler driven for one step, as the runner does it."""

from collections.abc import Sequence

import torch

from lorafleet_engine.messages import Token
from lorafleet_engine.runner.sampler import Draw, Sampler, plain


@torch.inference_mode()
def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Token | None]:
    """A token for each row of logits, None for a row that is not finite."""
    sampler = Sampler(torch.zeros(len(draws), dtype=torch.int32, device=logits.device))
    sampler.choose(logits)
    others = {row: draw for row, draw in enumerate(draws) if not plain(draw.params)}
    ids, told = sampler.finish(logits, others).wait()
    return [None if number is None else told.get(row) or Token(number) for row, number in enumerate(ids)]
