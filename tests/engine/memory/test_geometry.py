"""How the pool is cut, and that its sums are the contracts' to the byte."""

from hypothesis import given
from hypothesis import strategies as st

from lorafleet_contracts.capacity import (
    PROJECTIONS,
    ModelShape,
    adapter_bytes,
    adapter_bytes_by_module,
    kv_bytes_per_token,
)
from lorafleet_engine.memory.geometry import blob_bytes, pages_for_tokens, pool_geometry

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
    assert geometry.pages_of(80_740_352) == 88


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    kv_heads, group, dim = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from([4, 8, 16]))
    heads = kv_heads * group
    hidden = draw(st.sampled_from([heads * dim, 24, 56]))
    return ModelShape(draw(st.integers(1, 4)), hidden, draw(st.integers(1, 12)) * 8, heads, kv_heads, dim, 100)


@given(shapes(), st.integers(0, 9), st.sampled_from([2, 4]))
def test_granules_divide_everything(shape: ModelShape, rank: int, dtype_bytes: int) -> None:
    geometry = pool_geometry(shape, dtype_bytes)
    assert geometry.page_elements % geometry.granule == 0
    assert geometry.cache_row % geometry.granule == 0
    sizes = [shape.projection(name) for name in PROJECTIONS]
    assert [(a * geometry.granule, b * geometry.granule) for a, b in geometry.module_granules] == sizes
    assert geometry.page_bytes == 16 * kv_bytes_per_token(shape, dtype_bytes)
    ranks = [[rank + number for number in range(len(PROJECTIONS))]] * shape.layers
    by_module = {(layer, name): rank + n for layer in range(shape.layers) for n, name in enumerate(PROJECTIONS)}
    size = adapter_bytes_by_module(shape, by_module, dtype_bytes)
    assert blob_bytes(geometry, ranks) == size
    assert 0 <= geometry.pages_of(size) * geometry.page_bytes - size < geometry.page_bytes


def test_pages_for_tokens() -> None:
    assert [pages_for_tokens(count) for count in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]
