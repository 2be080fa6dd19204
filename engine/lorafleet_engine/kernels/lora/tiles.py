"""What the kernels of this op read: rank tiles, lists of work, and the memory that partial results pass through.

Without triton, so that runner/ can lay the lists out on any machine. A *tile* is RANK_TILE rows of rank of one adapter;
a *segment* is up to TOKEN_TILE (in decode steps FEW_TOKENS) tokens of one
adapter; a *pair* is a tile of a segment's adapter beside that segment.
"""

from dataclasses import dataclass

import torch

RANK_TILE = 16
TOKEN_TILE = 16
FEW_TOKENS = 4
MOST_SPLITS = 13
SPLIT_ELEMENTS = 512
WIDEST_UNIT = 512
"""Most elements of a row that one program reads at a time, for 2-byte numbers."""


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

    order lists the tokens that have an adapter, adapter by adapter. A segment is order[start : start + count] with its
    adapter's `tiles` tiles from `tile`, whose pairs follow one another from `pair`; a pair repeats its segment's start
    and count.
    """

    order: torch.Tensor
    counts: torch.Tensor
    segment_start: torch.Tensor
    segment_count: torch.Tensor
    segment_tile: torch.Tensor
    segment_tiles: torch.Tensor
    segment_pair: torch.Tensor
    pair_tile: torch.Tensor
    pair_start: torch.Tensor
    pair_count: torch.Tensor


@dataclass(frozen=True, slots=True)
class TileSource:
    """Where the step's rows of rank lie.

    pool [granules, G]; addresses [layers * layer_columns, tiles * RANK_TILE] int32 are the granules where the rows
    begin, `hole` where a tile has none; `groups` one for each group of projections. Shrinks run on the stream `side`,
    beside the caller's, if there is one.
    """

    pool: torch.Tensor
    addresses: torch.Tensor
    hole: int
    layer_columns: int
    groups: tuple[GroupColumns, ...]
    side: torch.cuda.Stream | None


@dataclass(frozen=True, slots=True)
class TiledRows:
    """The step's adapters for the kernels, in segments of at most `token_tile` tokens.

    partial (fp32), arrived (int32, zeros between launches) and hidden are scratch of one shrink and its expand.
    """

    source: TileSource
    work: TileWork
    token_tile: int
    partial: torch.Tensor
    arrived: torch.Tensor
    hidden: torch.Tensor


def tile_unit(granule: int) -> int:
    """Elements of a row read together: the largest power of two that divides a granule, up to WIDEST_UNIT."""
    return min(granule & -granule, WIDEST_UNIT)


def shrink_unit(pool: torch.Tensor) -> int:
    """The unit along the input, which every split of a shrink holds one of."""
    return min(tile_unit(pool.shape[1]), 256 // pool.element_size() * 2)


def shrink_splits(depth: int, unit: int, token_tile: int) -> int:
    """Programs that share one tile's input: about SPLIT_ELEMENTS each, at most MOST_SPLITS; one for long segments."""
    if token_tile > FEW_TOKENS:
        return 1
    units = depth // unit
    run = -(-units // min(max(depth // SPLIT_ELEMENTS, 1), MOST_SPLITS))
    return -(-units // run)


def tiled_rows(source: TileSource, work: TileWork, token_tile: int) -> TiledRows:
    """Take the scratch memory for a step's lists."""
    unit, device = shrink_unit(source.pool), source.pool.device
    most = max(len(group.downs) * shrink_splits(group.depth, unit, token_tile) for group in source.groups)
    places = work.pair_tile.shape[0] * max(len(group.downs) for group in source.groups)
    square = RANK_TILE * token_tile
    partial = torch.empty(work.pair_tile.shape[0] * most * square, device=device, dtype=torch.float32)
    arrived = torch.zeros(places, device=device, dtype=torch.int32)
    hidden = torch.empty(places * square, device=device, dtype=source.pool.dtype)
    return TiledRows(source, work, token_tile, partial, arrived, hidden)
