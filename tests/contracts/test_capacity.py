"""Every row of the capacity table (docs/capacity.md), to the byte."""

from dataclasses import replace
from fractions import Fraction

import pytest

from lorafleet_contracts import capacity
from lorafleet_contracts.capacity import BaseDoesNotFitError, ModelShape, ShardError

QWEN = ModelShape(
    layers=28,
    hidden=3584,
    intermediate=18944,
    heads=28,
    kv_heads=4,
    head_dim=128,
    vocab=152064,
    attention_bias=True,
)
SQUARE = ModelShape(
    layers=32,
    hidden=4096,
    intermediate=11008,
    heads=32,
    kv_heads=32,
    head_dim=128,
    vocab=32000,
)
WEIGHTS = 15_220_000_000
GB = 1_000_000_000


def test_rank_unit_parameters() -> None:
    assert capacity.rank_unit_parameters(QWEN) == 2_523_136 == 90_112 * 28


def test_rank_unit_parameters_at_tensor_parallel_two() -> None:
    assert capacity.rank_unit_parameters(QWEN, tensor_parallel=2) == 57_600 * 28


def test_a_shard_counts_as_a_model_of_its_own() -> None:
    """Weights of the projections halve, embedding, head and norms stay whole; KV halves; a rank costs what the formula
    for two GPUs says."""
    half = capacity.shard_shape(QWEN, 2)
    whole = 2 * 152064 * 3584 + 28 * 2 * 3584 + 3584
    assert (half.heads, half.kv_heads, half.intermediate, half.hidden) == (14, 2, 9472, 3584)
    assert capacity.weight_parameters(half) - whole == (capacity.weight_parameters(QWEN) - whole) // 2
    assert capacity.kv_bytes_per_token(half) == 57_344 // 2
    assert capacity.rank_unit_parameters(half) == capacity.rank_unit_parameters(QWEN, tensor_parallel=2)


def test_an_uneven_shard_is_refused_with_the_numbers() -> None:
    with pytest.raises(ShardError, match=r"tensorParallel 8 does not divide the base's 28 heads and 4 heads of keys"):
        capacity.shard_shape(QWEN, 8)


def test_rank_unit_parameters_of_square_attention() -> None:
    assert capacity.rank_unit_parameters(SQUARE, ("q_proj", "k_proj", "v_proj", "o_proj")) == 1_048_576


@pytest.mark.parametrize(("rank", "expected"), [(16, 80_740_352), (64, 322_961_408)])
def test_adapter_bytes(rank: int, expected: int) -> None:
    assert capacity.adapter_bytes(QWEN, rank) == expected


def test_weight_bytes() -> None:
    linear = 28 * (3584 * (3584 + 2 * 512) + 3584 * 3584 + 3 * 3584 * 18944)
    scales = 28 * (3584 + 2 * 512 + 3584 + 2 * 18944 + 3584)
    assert capacity.weight_bytes(QWEN) == 2 * capacity.weight_parameters(QWEN)
    assert capacity.weight_bytes(QWEN, fp8=True) == capacity.weight_bytes(QWEN) - linear + 4 * scales


def test_adapter_bytes_of_two_modules() -> None:
    assert capacity.adapter_bytes(QWEN, 16, ("q_proj", "v_proj")) == 10_092_544


def test_adapter_bytes_by_module_agrees_with_one_rank_everywhere() -> None:
    ranks = {(layer, module): 16 for layer in range(QWEN.layers) for module in capacity.PROJECTIONS}
    assert capacity.adapter_bytes_by_module(QWEN, ranks) == 80_740_352
    ranks[0, "q_proj"] = 8
    assert capacity.adapter_bytes_by_module(QWEN, ranks) == 80_740_352 - 8 * (3584 + 3584) * 2


def test_kv_bytes_per_token() -> None:
    assert capacity.kv_bytes_per_token(QWEN) == 57_344


def test_kv_budget_of_the_source_documents() -> None:
    slots = capacity.padded_slot_bytes(QWEN, 8, 64)
    left = capacity.usable_bytes(80 * GB, 92) - WEIGHTS - slots - 4 * GB
    assert slots == 2_583_691_264
    assert left == 51_796_308_736
    assert capacity.kv_tokens(left, 57_344) == 903_255
    assert capacity.kv_tokens(slots, 57_344) == 45_056


def test_padded_slots_of_one_rank_256_experiment() -> None:
    assert capacity.padded_slot_bytes(QWEN, 16, 256) == 20_669_530_112


def test_weights() -> None:
    assert round(capacity.weight_parameters(QWEN) / 1e9, 2) == 7.62
    tied = ModelShape(30, 576, 1536, 9, 3, 64, 49152, tied_embeddings=True)
    assert capacity.weight_parameters(tied) == 134_515_008


def test_weights_of_optional_tensors() -> None:
    """A shape as Qwen3-0.6B's, whose head size is not hidden / heads, has 596,049,920 parameters."""
    qwen3 = ModelShape(28, 1024, 3072, 16, 8, 128, 151936, tied_embeddings=True, qk_norm=True)
    assert capacity.weight_parameters(qwen3) == 596_049_920
    assert capacity.weight_parameters(replace(qwen3, qk_norm=False)) == 596_049_920 - 28 * 2 * 128
    assert capacity.weight_parameters(replace(qwen3, output_bias=True)) == 596_049_920 + 28 * 1024


def test_mig_slice_cannot_hold_the_base() -> None:
    size = capacity.mig_slice_bytes("nvidia.com/mig-1g.10gb")
    assert size == 10 * GB
    assert capacity.mig_slice_bytes("nvidia.com/gpu") is None
    with pytest.raises(BaseDoesNotFitError) as caught:
        capacity.plan_memory(capacity.usable_bytes(size, 92), WEIGHTS, 0, 57_344)
    assert caught.value.available == 9_200_000_000
    assert caught.value.needed == WEIGHTS + 57_344 * 16


def test_plan_memory_never_exceeds_what_is_usable() -> None:
    budget = capacity.plan_memory(73_600_000_000, WEIGHTS, 4 * GB, 57_344)
    assert budget.adapters == 13_595_000_000
    assert budget.weights + budget.activations + budget.adapters + budget.kv <= budget.total
    assert budget.kv_tokens * 57_344 == budget.kv
    assert budget.kv_tokens % capacity.KV_BLOCK_TOKENS == 0


def test_transfer_floor() -> None:
    assert capacity.transfer_seconds(80_740_352) == pytest.approx(1.2616e-3, rel=1e-3)
    assert capacity.transfer_seconds(322_961_408) == pytest.approx(5.046e-3, rel=1e-3)


def test_host_cache_of_256_adapters() -> None:
    assert 256 * capacity.adapter_bytes(QWEN, 16) == 20_669_530_112


def test_pool_size_of_the_source_documents() -> None:
    effective = capacity.effective_capacity(Fraction(10), 20)
    assert effective == 8
    assert capacity.pool_size(Fraction(30), effective, redundancy=1) == 5


def test_pool_size_is_exact_at_the_edge() -> None:
    assert capacity.pool_size(Fraction(3, 10), Fraction(1, 10), redundancy=0) == 3


def test_decode_cost_per_rank_unit() -> None:
    per_rank = capacity.adapter_bytes(QWEN, 1)
    assert per_rank == 5_046_272
    assert capacity.decode_adapter_seconds(1, per_rank, 4_300_000_000_000) == pytest.approx(1.173e-6, rel=1e-3)
