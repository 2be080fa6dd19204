"""The device's bytes are divided before anything is allocated, and never more than there are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_contracts.capacity import BaseDoesNotFitError, ModelShape, weight_parameters
from lorafleet_engine.errors import DoesNotFitError
from lorafleet_engine.memory.budget import INDEX_BYTES, plan_engine_memory
from lorafleet_engine.memory.geometry import RESERVED_PAGES, pool_geometry
from lorafleet_engine.messages import StepLimits
from tests.support.cases import cases

SMOL = ModelShape(30, 576, 1536, 9, 3, 64, 49152, tied_embeddings=True)
GEOMETRY = pool_geometry(SMOL, 4)
LIMITS = StepLimits(tokens=512, sequences=16)


@settings(max_examples=cases(100), deadline=None)
@given(st.integers(700_000_000, 200_000_000_000), st.sampled_from([256, 2048]))
def test_parts_never_exceed_the_whole(usable: int, length: int) -> None:
    try:
        plan = plan_engine_memory(SMOL, GEOMETRY, LIMITS, length, usable)
    except (BaseDoesNotFitError, DoesNotFitError):
        assert usable < 1_300_000_000
        return
    budget = plan.budget
    assert budget.weights == weight_parameters(SMOL) * 4
    assert budget.weights + budget.activations + budget.adapters + budget.kv <= usable == budget.total
    tables = plan.table_rows * GEOMETRY.layers * GEOMETRY.layer_columns * INDEX_BYTES
    allocated = budget.weights + tables + plan.pages * GEOMETRY.page_bytes
    assert allocated <= usable
    assert (plan.pages - RESERVED_PAGES) * 16 >= budget.kv_tokens
    assert plan.kv_floor * 16 >= length


def test_a_rounded_base_leaves_room_to_check_adapters() -> None:
    plain, rounded = (plan_engine_memory(SMOL, GEOMETRY, LIMITS, 256, 4_000_000_000, fp8=fp8).budget for fp8 in (0, 1))
    layer = 576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536
    assert rounded.activations - plain.activations > 2 * layer * 4
    assert rounded.weights < plain.weights
    assert rounded.kv_tokens > plain.kv_tokens


def test_fixed_kernels_gather_no_contexts() -> None:
    def fixed(length: int, *, cuda: bool) -> int:
        return plan_engine_memory(SMOL, GEOMETRY, LIMITS, length, 40_000_000_000, cuda=cuda).budget.activations

    assert 0 < fixed(32768, cuda=True) - fixed(1024, cuda=True) < 32_000_000
    assert fixed(32768, cuda=False) - fixed(1024, cuda=False) > 32_000_000


def test_too_small_for_the_base() -> None:
    with pytest.raises(BaseDoesNotFitError):
        plan_engine_memory(SMOL, GEOMETRY, LIMITS, 256, 500_000_000)


def test_too_small_for_one_full_sequence() -> None:
    with pytest.raises(DoesNotFitError, match="KV tokens"):
        plan_engine_memory(SMOL, GEOMETRY, LIMITS, 100_000, 9_000_000_000)
