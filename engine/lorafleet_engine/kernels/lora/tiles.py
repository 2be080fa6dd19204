"""What the kernels of this op read: tiles of rank, lists of work, and the memory that partial results pass through.

Without triton, so that runner/ can lay the lists out on any machine. A *tile* is a few rows of rank of one adapter; a
*segment* is a few tokens of one adapter, or of none, whose outputs one program makes; a *pair* is a tile of an adapter
beside tokens of it, of one segment or several. How many rows and tokens that is, a TileShape says.
"""

from dataclasses import dataclass

import torch

MOST_SPLITS = 16
"""Most programs that share one tile's input; a power of two."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """Rows of rank in a tile, tokens in a segment and tokens in a pair, at most; whole segments make a pair. Outputs
    of `few` tokens go first in matrix products (see expand.py)."""

    ranks: int = 0
    tokens: int = 0
    pair_tokens: int = 0
    few: bool = True
    shrink_waves: int = 0
    """Programs of a shrink for each multiprocessor."""

    @property
    def square(self) -> int:
        """Hidden values of a pair and projection."""
        return self.ranks * self.pair_tokens


NO_TILES = TileShape()
FEW_TOKENS = TileShape(16, 8, 16, True, 4)
"""For decode steps, which have few tokens of each adapter."""
MANY_TOKENS = TileShape(32, 64, 64, False, 2)
"""For steps with chunks of prompts."""


@dataclass(frozen=True, slots=True)
class GroupColumns:
    """Which of a layer's columns of addresses are a group's: those of its projections' A's and B's; and how wide these
    are: `depth` elements in, `widths` out."""

    downs: tuple[int, ...]
    ups: tuple[int, ...]
    depth: int
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TileWork:
    """A step's lists, int32 on the device. Lists may be longer than what `counts` = (pairs, segments) says.

    order lists all tokens, adapter by adapter and then those that have none. A segment is order[start : start + count]
    with its adapter's `tiles` tiles from `tile` (none: 0), whose pairs follow one another from the one that has the
    segment's hidden values from `place` on, counted in rows of a square through all pairs. A pair has its own start and
    count in order.
    """

    order: torch.Tensor
    counts: torch.Tensor
    segment_start: torch.Tensor
    segment_count: torch.Tensor
    segment_tile: torch.Tensor
    segment_tiles: torch.Tensor
    segment_place: torch.Tensor
    pair_tile: torch.Tensor
    pair_start: torch.Tensor
    pair_count: torch.Tensor


@dataclass(frozen=True, slots=True)
class TileSource:
    """Where the step's rows of rank lie.

    pool [granules, G]; addresses [layers * layer_columns, tiles * ranks] int32 are the granules where the rows begin,
    `hole` where a tile has none; `groups` one for each group of projections. Shrinks run on the stream `side`, beside
    the caller's, if there is one.
    """

    pool: torch.Tensor
    addresses: torch.Tensor
    hole: int
    layer_columns: int
    groups: tuple[GroupColumns, ...]
    side: torch.cuda.Stream | None


@dataclass(frozen=True, slots=True)
class TiledRows:
    """The step's adapters for the kernels.

    hidden holds a square [pair_tokens, ranks] for each pair and projection, one after another. partial (fp32), arrived
    (int32, zeros between launches) and hidden are scratch of one shrink and its expand.
    """

    source: TileSource
    work: TileWork
    shape: TileShape
    partial: torch.Tensor
    arrived: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True)
class LoraUpdate:
    """What a group (`site`: layer, group) has still to add to its output [T, N]: its hidden values are there, or all of
    it in `sums` [T, N] (fp32)."""

    rows: TiledRows
    site: tuple[int, int]
    sums: torch.Tensor | None = None


def tile_unit(granule: int) -> int:
    """Numbers that lie together wherever a row begins: the largest power of two that divides a granule."""
    return granule & -granule


def layer_place(source: TileSource, layer: int) -> tuple[int, int, int]:
    """Where the layer's part of the addresses begins, how long a column of them is, and what stands for no row."""
    return layer * source.layer_columns, source.addresses.shape[1], source.hole


def multiprocessors(device: torch.device) -> int:
    """How many the device has; 1 where triton interprets."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def tiled_rows(source: TileSource, work: TileWork, shape: TileShape) -> TiledRows:
    """Take the scratch memory for a step's lists. Where an input is shared there are at most as many shares as
    programs (see shrink.py)."""
    device, square = source.pool.device, shape.square
    programs = shape.shrink_waves * multiprocessors(device)
    places = work.pair_tile.shape[0] * max(len(group.downs) for group in source.groups)
    partial = torch.empty(programs * square, device=device, dtype=torch.float32)
    arrived = torch.zeros(programs, device=device, dtype=torch.int32)
    hidden = torch.empty(places * square, device=device, dtype=source.pool.dtype)
    return TiledRows(source, work, shape, partial, arrived, hidden)
