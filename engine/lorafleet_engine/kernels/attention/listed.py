"""A step's attention as work for the kernels. Without triton, so that any machine can name it; made by kernel.py."""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.attention.contexts import StepContexts


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """How single tokens are computed: tokens of a block, warps, blocks under way; splits joined at a time."""

    block: int
    warps: int
    stages: int
    joined: int


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """How chunks are computed: rows (queries x heads of a group) and tokens of a block, warps, blocks under way
    where all is visible and where some is not; programs that share a block's context at most, and tokens that each of
    them gets at least."""

    rows: int
    block: int
    warps: int
    stages: int
    masked: int
    splits: int = 1
    least: int = 256


@dataclass(frozen=True, slots=True)
class Spread:
    """How contexts are cut: at most `more` splits more than sequences, `least` tokens each at least."""

    more: int
    least: int


@dataclass(frozen=True, slots=True)
class ListedWork:
    """A step's contexts with the lists that the kernels walk, and room for what splits leave to be joined: `arrived`,
    `partial` and `stats` of single tokens, `shared` the same of chunks."""

    contexts: StepContexts
    splits: torch.Tensor
    arrived: torch.Tensor
    partial: torch.Tensor
    stats: torch.Tensor
    blocks: torch.Tensor
    tile: DecodeTile
    chunk_tile: PrefillTile
    shared: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
