"""How the pool is cut, and that its sums are the contracts' to the byte."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_contracts.capacity import (
    PROJECTIONS,
    ModelShape,
    adapter_bytes,
    adapter_bytes_by_module,
    kv_bytes_per_token,
)
from lorafleet_engine.memory.geometry import blob_bytes, page_slices, pages_for_tokens, pool_geometry, row_places
from tests.support.cases import cases

QWEN = ModelShape(28, 3584, 18944, 28, 4, 128, 152064, attention_bias=True)
SMOL = ModelShape(30, 576, 1536, 9, 3, 64, 49152, tied_embeddings=True)


def test_page_is_one_kv_block() -> None:
    geometry = pool_geometry(QWEN, 2)
    assert geometry.page_bytes == 917_504 == 16 * kv_bytes_per_token(QWEN)
    assert geometry.granule == 512
    assert pool_geometry(SMOL, 4).page_bytes == 737_280


def test_a_full_adapter_has_the_planners_bytes() -> None:
    geometry = pool_geometry(QWEN, 2)
    ranks = [[16] * len(PROJECTIONS)] * QWEN.layers
    assert blob_bytes(geometry, ranks) == adapter_bytes(QWEN, 16) == 80_740_352
    assert geometry.pages_of(ranks) == 89


def test_at_most_one_page_in_twenty_is_lost() -> None:
    geometry = pool_geometry(QWEN, 2)
    for rank in (1, 5, 8, 16, 64, 256):
        ranks = [[rank] * len(PROJECTIONS)] * QWEN.layers
        size = blob_bytes(geometry, ranks)
        # Beside the last page, which a whole adapter may just begin.
        assert (geometry.pages_of(ranks) - 1) * geometry.page_bytes <= size * 1.05


def test_a_row_longer_than_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 4096 does not fit"):
        pool_geometry(ModelShape(1, 64, 4096, 4, 1, 16, 100), 2)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    kv_heads, group, dim = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from([4, 8, 16]))
    heads = kv_heads * group
    hidden = draw(st.sampled_from([heads * dim, 24, 56]))
    return ModelShape(draw(st.integers(1, 4)), hidden, draw(st.integers(1, 12)) * 8, heads, kv_heads, dim, 100)


RANKS = st.lists(st.integers(0, 9), min_size=len(PROJECTIONS), max_size=len(PROJECTIONS))
"""Of one layer's modules."""


@settings(max_examples=cases(100), deadline=None)
@given(shapes(), st.lists(RANKS, min_size=4, max_size=4), st.sampled_from([2, 4]))
def test_granules_divide_everything(shape: ModelShape, drawn: list[list[int]], dtype_bytes: int) -> None:
    geometry = pool_geometry(shape, dtype_bytes)
    assert geometry.page_elements % geometry.granule == 0
    assert geometry.cache_row % geometry.granule == 0
    sizes = [shape.projection(name) for name in PROJECTIONS]
    assert [(a * geometry.granule, b * geometry.granule) for a, b in geometry.module_granules] == sizes
    assert geometry.page_bytes == 16 * kv_bytes_per_token(shape, dtype_bytes)
    ranks = drawn[: shape.layers]
    by_module = {
        (layer, name): rank for layer, row in enumerate(ranks) for name, rank in zip(PROJECTIONS, row, strict=True)
    }
    assert blob_bytes(geometry, ranks) == adapter_bytes_by_module(shape, by_module, dtype_bytes)


@settings(max_examples=cases(100), deadline=None)
@given(shapes(), st.data())
def test_rows_are_whole_and_in_blob_order(shape: ModelShape, data: st.DataObject) -> None:
    geometry = pool_geometry(shape, 2)
    ranks = data.draw(st.lists(RANKS, min_size=shape.layers, max_size=shape.layers))
    rank = max(1, *map(max, ranks))
    slices, places = page_slices(geometry, ranks), row_places(geometry, ranks, rank)
    assert geometry.pages_of(ranks) == len(slices)
    assert [start for start, _ in slices] == [0, *accumulate(size for _, size in slices)][:-1]
    assert sum(size for _, size in slices) == blob_bytes(geometry, ranks)
    assert all(0 <= size <= geometry.page_bytes for _, size in slices)
    at, unit = 0, geometry.granule * geometry.dtype_bytes
    for layer in range(shape.layers):
        for column in range(geometry.layer_columns):
            width, own = geometry.module_granules[column // 2][column % 2], ranks[layer][column // 2]
            here = places[layer * geometry.layer_columns + column]
            assert (here[own:] == -1).all()
            for place in here[:own].tolist():
                page, within = divmod(place, geometry.page_granules)
                start, size = slices[page]
                assert start + within * unit == at
                assert (within + width) * unit <= size
                at += width * unit


def test_pages_for_tokens() -> None:
    assert [pages_for_tokens(count) for count in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]
