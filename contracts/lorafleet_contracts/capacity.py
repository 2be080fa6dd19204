"""Capacity arithmetic that the operator's planner and the engine share, so that both agree to the byte.

Called by the operator's core, the engine's loop and the planner. Standard library only: no clocks, no I/O.
Units: bytes, tokens and parameters are integers; times are seconds; rates are per second; 1 GB = 1e9 bytes.
Formulas: docs/capacity.md names the source of each one.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

KV_BLOCK_TOKENS = 16
PCIE_BYTES_PER_SECOND = 64_000_000_000
ADAPTER_SHARE_PERCENT = 25
"""Share of the memory left after weights and activations that adapters may take; the rest is KV cache."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ROW_PARALLEL = frozenset({"o_proj", "down_proj"})

_MIG_RESOURCE = re.compile(r"^nvidia\.com/mig-\d+g\.(\d+)gb(?:\..+)?$")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder-only transformer that decide its memory.

    `attention_bias` says whether q, k and v have biases (Qwen2 does, Llama need not), `output_bias` whether o has one,
    `qk_norm` whether each layer norms the heads of q and of k by a weight of head_dim each (Qwen3 does).
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False

    def projection(self, module: str) -> tuple[int, int]:
        """Return (in, out) features of one projection. Raises KeyError for a name that is none of PROJECTIONS."""
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, query),
            "k_proj": (self.hidden, key_value),
            "v_proj": (self.hidden, key_value),
            "o_proj": (query, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }[module]


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """How one replica's memory is divided. `kv` holds whole blocks of KV_BLOCK_TOKENS tokens, `kv_tokens` in all."""

    total: int
    weights: int
    activations: int
    adapters: int
    kv: int
    kv_tokens: int


class BaseDoesNotFitError(ValueError):
    """Weights and activations leave no room for one KV block; carries the numbers in bytes."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"the base model needs {needed} bytes before any adapter or KV cache; {available} are usable")
        self.needed = needed
        self.available = available


class ShardError(ValueError):
    """A model cannot be split evenly over so many GPUs."""


def shard_shape(shape: ModelShape, tensor_parallel: int) -> ModelShape:
    """What one of `tensor_parallel` GPUs holds: its share of the heads and of the feed-forward; embedding, head, norms
    and stream whole. Every sum of this file is per GPU for such a shape. Raises ShardError, with the numbers, unless
    each GPU gets whole heads of keys and values and the same width."""
    parts = {
        "heads": shape.heads,
        "heads of keys and values": shape.kv_heads,
        "feed-forward columns": shape.intermediate,
    }
    uneven = [f"{count} {name}" for name, count in parts.items() if tensor_parallel < 1 or count % tensor_parallel]
    if uneven:
        raise ShardError(f"tensorParallel {tensor_parallel} does not divide the base's {' and '.join(uneven)}")
    return replace(
        shape,
        heads=shape.heads // tensor_parallel,
        kv_heads=shape.kv_heads // tensor_parallel,
        intermediate=shape.intermediate // tensor_parallel,
    )


def rank_unit_parameters(shape: ModelShape, modules: Iterable[str] = PROJECTIONS, tensor_parallel: int = 1) -> int:
    """Parameters (per GPU) that one unit of rank costs over all layers.

    A column-parallel projection keeps A whole and splits B; a row-parallel one splits A and keeps B whole.
    """
    per_layer = 0
    for module in modules:
        fan_in, fan_out = shape.projection(module)
        if module in ROW_PARALLEL:
            per_layer += fan_in // tensor_parallel + fan_out
        else:
            per_layer += fan_in + fan_out // tensor_parallel
    return per_layer * shape.layers


def adapter_bytes(
    shape: ModelShape, rank: int, modules: Iterable[str] = PROJECTIONS, dtype_bytes: int = 2, tensor_parallel: int = 1
) -> int:
    """Bytes (per GPU) of an adapter with one rank everywhere."""
    return rank * rank_unit_parameters(shape, modules, tensor_parallel) * dtype_bytes


def adapter_bytes_by_module(shape: ModelShape, ranks: Mapping[tuple[int, str], int], dtype_bytes: int = 2) -> int:
    """Bytes of an adapter whose ranks differ: `ranks` maps (layer, module) to the true rank there."""
    return sum(rank * sum(shape.projection(module)) for (_, module), rank in ranks.items()) * dtype_bytes


def padded_slot_bytes(shape: ModelShape, slots: int, max_rank: int, dtype_bytes: int = 2) -> int:
    """What an engine that pads every slot to its maximum rank preallocates (for comparison)."""
    return slots * adapter_bytes(shape, max_rank, dtype_bytes=dtype_bytes)


def weight_parameters(shape: ModelShape) -> int:
    """Parameters of the whole base model: projections, biases, norms, embeddings and head."""
    linear = sum(math.prod(shape.projection(module)) for module in PROJECTIONS)
    biases = (shape.heads + 2 * shape.kv_heads) * shape.head_dim if shape.attention_bias else 0
    biases += shape.hidden if shape.output_bias else 0
    norms = 2 * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0)
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied_embeddings else 2)
    return (linear + biases + norms) * shape.layers + embeddings + shape.hidden


def weight_bytes(shape: ModelShape, dtype_bytes: int = 2, *, fp8: bool = False) -> int:
    """Bytes of the whole base model; with `fp8` its projections take one byte a weight and four an output's scale."""
    parameters = weight_parameters(shape)
    if not fp8:
        return parameters * dtype_bytes
    sizes = [shape.projection(module) for module in PROJECTIONS]
    linear = sum(fan_in * fan_out for fan_in, fan_out in sizes) * shape.layers
    scales = sum(fan_out for _, fan_out in sizes) * shape.layers
    return (parameters - linear) * dtype_bytes + linear + 4 * scales


def kv_bytes_per_token(shape: ModelShape, dtype_bytes: int = 2) -> int:
    """Bytes that K and V of one token take over all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype_bytes


def kv_tokens(kv_bytes: int, bytes_per_token: int) -> int:
    """Whole tokens that fit into `kv_bytes`."""
    return kv_bytes // bytes_per_token


def usable_bytes(total: int, utilization_percent: int) -> int:
    """The part of a device's memory that the engine may take."""
    return total * utilization_percent // 100


def plan_memory(usable: int, weights: int, activations: int, bytes_per_token: int) -> MemoryBudget:
    """Divide `usable` bytes: weights and activations first, then adapters and KV by ADAPTER_SHARE_PERCENT.

    Raises BaseDoesNotFitError when not even one KV block is left.
    """
    left = usable - weights - activations
    block = bytes_per_token * KV_BLOCK_TOKENS
    adapters = max(left, 0) * ADAPTER_SHARE_PERCENT // 100
    blocks = (left - adapters) // block
    if left <= 0 or blocks < 1:
        raise BaseDoesNotFitError(weights + activations + block, usable)
    return MemoryBudget(usable, weights, activations, adapters, blocks * block, blocks * KV_BLOCK_TOKENS)


def mig_slice_bytes(resource: str) -> int | None:
    """Memory of a MIG slice by its Kubernetes resource name, None for any other resource."""
    match = _MIG_RESOURCE.match(resource)
    return int(match.group(1)) * 1_000_000_000 if match else None


def transfer_seconds(size: int, bytes_per_second: int = PCIE_BYTES_PER_SECOND) -> float:
    """The least time a copy of `size` bytes takes over a link."""
    return size / bytes_per_second


def decode_adapter_seconds(rank_sum: int, bytes_per_rank: int, bytes_per_second: int) -> float:
    """Memory-bound time that adapters add to one decode step: `rank_sum` over the step's distinct adapters."""
    return rank_sum * bytes_per_rank / bytes_per_second


def effective_capacity(base_rate: Fraction, penalty_percent: int) -> Fraction:
    """Requests per second of one replica after the adapter penalty."""
    return base_rate * (100 - penalty_percent) / 100


def pool_size(load: Fraction, capacity: Fraction, redundancy: int) -> int:
    """Replicas that carry `load` with `redundancy` of them lost."""
    return math.ceil(load / capacity) + redundancy
