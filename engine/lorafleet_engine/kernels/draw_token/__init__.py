"""Tokens drawn from logits, of all or of the likeliest: the op as runner/sampler.py calls it."""

import torch

from lorafleet_engine.kernels.draw_token import reference


def draw_token(rows: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    """A token [n] int64 for each of rows [n, vocab] fp32.

    settings [n, 4] fp64 are temperature > 0, top_p, min_p and a random number in [0, 1): where that falls in the
    cumulative distribution, in order of the numbers, of the tokens that may be drawn. Those are the likeliest whose
    likelier ones have less than top_p together, and the ones equally likely as the last of these; but none less likely
    than min_p of the likeliest.
    """
    if rows.is_cuda:
        from lorafleet_engine.kernels.draw_token import kernel

        return kernel.draw_token(rows, settings)
    return reference.draw_token(rows, settings)
