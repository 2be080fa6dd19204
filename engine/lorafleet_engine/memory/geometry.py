"""How the pool is cut: one array of elements seen as pages, as rows of the KV cache and as granules of adapters.

Used by budget.py, versions.py and the runner, which must agree on it. A page holds one KV block of all layers. A
granule divides every row of an adapter, every row of the cache and so every page. An adapter's rows follow one another
over any pages, each row whole in one page: what is lost is less than one row a page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS, PROJECTIONS, ModelShape

RESERVED_PAGES = 2
SCRATCH_PAGE = 0
"""Where padded tokens of a graph write their keys and values; nobody reads it."""
ZERO_PAGE = 1
"""Always zeros: what padding and missing rows read."""


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """Sizes in elements (of `dtype_bytes` each) for one model."""

    layers: int
    cache_row: int
    granule: int
    module_granules: tuple[tuple[int, int], ...]
    dtype_bytes: int

    @property
    def page_rows(self) -> int:
        """Cache rows of a page: for each layer KV_BLOCK_TOKENS keys, then as many values."""
        return self.layers * self.layer_rows

    @property
    def layer_rows(self) -> int:
        """Cache rows of one layer in a page."""
        return 2 * KV_BLOCK_TOKENS

    @property
    def page_elements(self) -> int:
        return self.page_rows * self.cache_row

    @property
    def page_bytes(self) -> int:
        return self.page_elements * self.dtype_bytes

    @property
    def page_granules(self) -> int:
        return self.page_elements // self.granule

    @property
    def layer_columns(self) -> int:
        """Rows that one unit of rank has in one layer: A and B of every projection."""
        return 2 * len(self.module_granules)

    def pages_of(self, module_ranks: Sequence[Sequence[int]]) -> int:
        """Pages that hold an adapter with these true ranks by layer and module."""
        return len(page_slices(self, module_ranks))


def pool_geometry(shape: ModelShape, dtype_bytes: int) -> PoolGeometry:
    """Cut the pool for a model. Raises ValueError for one whose rows of rank are longer than a page."""
    cache_row = shape.kv_heads * shape.head_dim
    sizes = [shape.projection(module) for module in PROJECTIONS]
    granule = math.gcd(cache_row, *(size for pair in sizes for size in pair))
    granules = tuple((fan_in // granule, fan_out // granule) for fan_in, fan_out in sizes)
    geometry = PoolGeometry(shape.layers, cache_row, granule, granules, dtype_bytes)
    if max(map(max, granules)) > geometry.page_granules:
        raise ValueError(f"a row of {max(map(max, sizes))} does not fit into a page of {geometry.page_elements}")
    return geometry


def pages_for_tokens(tokens: int) -> int:
    """Pages that hold the keys and values of `tokens` tokens."""
    return -(-tokens // KV_BLOCK_TOKENS)


def page_slices(geometry: PoolGeometry, module_ranks: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """What each page of an adapter holds, in order of its pages: (first byte of the blob, bytes), whole rows only. Each
    begins where its page begins; together they are the whole blob, one after another."""
    return _page_slices(geometry, _hashable(module_ranks))


def row_places(geometry: PoolGeometry, module_ranks: Sequence[Sequence[int]], rank: int) -> npt.NDArray[np.int32]:
    """Where each row begins: [layers * layer_columns, rank] granules, counted from the adapter's first page as if its
    pages followed one another; -1 = no such row. Not to be written to."""
    return _row_places(geometry, _hashable(module_ranks), rank)


def _hashable(module_ranks: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, module_ranks))


@lru_cache(maxsize=64)
def _page_slices(geometry: PoolGeometry, module_ranks: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, int], ...]:
    """Remembered, as adapters of one pool mostly share a few layouts and loads come beside the steps."""
    unit = geometry.granule * geometry.dtype_bytes
    starts = _page_starts(geometry, module_ranks)
    ends = (*starts[1:], blob_bytes(geometry, module_ranks) // unit)
    return tuple((start * unit, (end - start) * unit) for start, end in zip(starts, ends, strict=True))


@lru_cache(maxsize=64)
def _row_places(geometry: PoolGeometry, module_ranks: tuple[tuple[int, ...], ...], rank: int) -> npt.NDArray[np.int32]:
    places = np.full((geometry.layers, geometry.layer_columns, rank), -1, dtype=np.int64)
    start = 0
    for layer, ranks in enumerate(module_ranks):
        for module, (own, pair) in enumerate(zip(ranks, geometry.module_granules, strict=True)):
            for side, width in enumerate(pair):
                places[layer, 2 * module + side, :own] = np.arange(start, start + own * width, width)
                start += own * width
    starts = np.asarray(_page_starts(geometry, module_ranks), dtype=np.int64)
    page = np.searchsorted(starts, places, side="right") - 1
    moved = np.where(places < 0, -1, places - starts[page] + page * geometry.page_granules)
    table = moved.reshape(-1, rank).astype(np.int32)
    table.setflags(write=False)
    return table


def _page_starts(geometry: PoolGeometry, module_ranks: Sequence[Sequence[int]]) -> list[int]:
    """First granule of the blob in each page: a row that would not end in the page begins a new one."""
    room, starts, at = geometry.page_granules, [0], 0
    for ranks in module_ranks:
        for own, pair in zip(ranks, geometry.module_granules, strict=True):
            for width in pair:
                left = own
                while left > (fits := (starts[-1] + room - at) // width):
                    at += fits * width
                    left -= fits
                    starts.append(at)
                at += left * width
    return starts


def blob_bytes(geometry: PoolGeometry, module_ranks: Sequence[Sequence[int]]) -> int:
    """Length of a packed adapter with these true ranks by layer and module."""
    granules = sum(
        rank * sum(pair) for ranks in module_ranks for rank, pair in zip(ranks, geometry.module_granules, strict=True)
    )
    return granules * geometry.granule * geometry.dtype_bytes
