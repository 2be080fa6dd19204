"""Rotary position embedding (Su et al., 2021), halves rotated as Llama and Qwen2 publish it."""

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate every head of x [T, heads, dim] by its token's angles; cos and sin are fp32 [T, 1, dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
