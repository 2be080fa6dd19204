"""The table of rotary angles of every position a model can see."""

import torch

from lorafleet_engine.model.config import ModelConfig


def rope_table(config: ModelConfig, positions: int, device: torch.device) -> torch.Tensor:
    """Return fp32 [positions, 2, head_dim / 2]: cosine, then sine, of position x theta^(-2 i / head_dim)."""
    dim = config.shape.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return torch.stack((angles.cos(), angles.sin()), dim=1).to(device)
