"""The table of rotary angles of every position a model can see. Called once by runner/ at start."""

import math

import torch

from lorafleet_engine.model.config import ModelConfig
from lorafleet_engine.model.rope_settings import RopeSettings


def rope_table(config: ModelConfig, positions: int, device: torch.device) -> torch.Tensor:
    """Return fp32 [positions, 2, head_dim / 2]: cosine, then sine, of position x frequency."""
    angles = torch.outer(torch.arange(positions).float(), rope_frequencies(config.rope, config.shape.head_dim))
    table = torch.stack((angles.cos(), angles.sin()), dim=1) * config.rope.attention_factor
    return table.to(device)


def rope_frequencies(rope: RopeSettings, dim: int) -> torch.Tensor:
    """Return fp32 [dim / 2], in radians per position: theta^(-2 i / dim), scaled as `rope` says."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    exact = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return exact
    if rope.kind == "linear":
        return exact / rope.factor
    kept = _kept_llama3(rope, exact) if rope.kind == "llama3" else _kept_yarn(rope, dim)
    return exact * kept + exact / rope.factor * (1 - kept)


def _kept_llama3(rope: RopeSettings, exact: torch.Tensor) -> torch.Tensor:
    """The share of each frequency that stays: a ramp over its turns within the original window."""
    turns = rope.original_positions * exact / (2 * math.pi)
    return ((turns - rope.slow_turns) / (rope.fast_turns - rope.slow_turns)).clamp(0, 1)


def _kept_yarn(rope: RopeSettings, dim: int) -> torch.Tensor:
    """The same, but a ramp over the dimensions (Peng et al., 2023): from the one that turns fast to the slow one."""
    first, last = (_dimension(rope, turns, dim) for turns in (rope.fast_turns, rope.slow_turns))
    if rope.whole_bounds:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first or 0.001
    return 1 - ((torch.arange(dim // 2).float() - first) / width).clamp(0, 1)


def _dimension(rope: RopeSettings, turns: float, dim: int) -> float:
    """Where, counted in frequencies and not whole, a frequency makes `turns` turns within the original window."""
    return dim * math.log(rope.original_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
