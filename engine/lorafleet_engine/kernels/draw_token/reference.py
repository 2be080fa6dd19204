"""Drawing in double precision, in plain torch: the vocabulary is sorted where top_p asks for it."""

import torch


def draw_token(rows: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    """See the op."""
    temperature, top_p, min_p, chance = settings[:, :, None].unbind(1)
    chances = torch.softmax((rows - rows.amax(dim=-1, keepdim=True)).double() / temperature, dim=-1)
    kept = chances >= min_p * chances.amax(dim=-1, keepdim=True)
    if bool((top_p < 1).any()):
        kept &= (rows >= _least(rows, chances, top_p)) | (top_p >= 1)
    total = torch.where(kept, chances, 0).cumsum(dim=-1)
    place = torch.searchsorted(total, total[:, -1:] * chance, right=True).clamp(max=total.shape[1] - 1)
    return place[:, 0]


def _least(rows: torch.Tensor, chances: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The lowest logit [n, 1] of those of top_p."""
    falling, order = rows.sort(dim=-1, descending=True)
    ordered = chances.gather(1, order)
    kept = (ordered.cumsum(dim=-1) - ordered < top_p).sum(dim=-1, keepdim=True)
    return falling.gather(1, (kept - 1).clamp(min=0))
