"""How the pool is cut: one array of elements seen as pages, as rows of the KV cache and as granules of adapters.

Used by budget.py, the packer and the runner, which must agree on it. A page holds one KV block of all layers. A granule
divides every row of an adapter, every row of the cache and so every page: an adapter's bytes are one run of granules
that may be spread over any pages, with nothing lost but the end of its last page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    def layer_granules(self) -> int:
        """Granules of one unit of rank in one layer, all projections, A and B."""
        return sum(fan_in + fan_out for fan_in, fan_out in self.module_granules)

    def pages_of(self, size: int) -> int:
        """Pages that hold `size` bytes of one adapter."""
        return -(-size // self.page_bytes)


def pool_geometry(shape: ModelShape, dtype_bytes: int) -> PoolGeometry:
    """Cut the pool for a model."""
    cache_row = shape.kv_heads * shape.head_dim
    sizes = [shape.projection(module) for module in PROJECTIONS]
    granule = math.gcd(cache_row, *(size for pair in sizes for size in pair))
    granules = tuple((fan_in // granule, fan_out // granule) for fan_in, fan_out in sizes)
    return PoolGeometry(shape.layers, cache_row, granule, granules, dtype_bytes)


def pages_for_tokens(tokens: int) -> int:
    """Pages that hold the keys and values of `tokens` tokens."""
    return -(-tokens // KV_BLOCK_TOKENS)


def page_slices(geometry: PoolGeometry, module_ranks: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """What each page of an adapter holds, in order of its pages: (first byte of the blob, bytes). Each begins where its
    page begins; together they are the whole blob, one after another."""
    size, step = blob_bytes(geometry, module_ranks), geometry.page_bytes
    return tuple((start, min(step, size - start)) for start in range(0, size, step))


def blob_bytes(geometry: PoolGeometry, module_ranks: Sequence[Sequence[int]]) -> int:
    """Length of a packed adapter with these true ranks by layer and module."""
    granules = sum(
        rank * sum(pair) for ranks in module_ranks for rank, pair in zip(ranks, geometry.module_granules, strict=True)
    )
    return granules * geometry.granule * geometry.dtype_bytes
