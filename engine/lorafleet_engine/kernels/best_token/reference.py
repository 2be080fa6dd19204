"""The most likely token, in plain torch."""

import torch


def best_token(logits: torch.Tensor, sampled: torch.Tensor, told: torch.Tensor) -> None:
    """See the op."""
    best, ids = logits.max(dim=-1)
    sampled.copy_(ids)
    told.copy_(torch.where(torch.isfinite(best), ids, -1))
