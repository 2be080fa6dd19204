"""The most likely token of every row of logits: the op as runner/sampler.py calls it."""

import torch

from lorafleet_engine.kernels.best_token import reference


def best_token(logits: torch.Tensor, sampled: torch.Tensor, told: torch.Tensor, arrived: torch.Tensor) -> None:
    """Write the number of the highest of each row of logits [S, vocab] to sampled [S], and to told [S], where that is
    -1 for a row whose highest is not finite. Both are int32; `arrived` [S] int32 is zero before and after."""
    if logits.is_cuda:
        from lorafleet_engine.kernels.best_token import kernel

        kernel.best_token(logits, sampled, told, arrived)
    else:
        reference.best_token(logits, sampled, told)
