"""The device's bytes divided before anything is allocated. Called once by loop.py at start; the sums are contracts'."""

import math
from dataclasses import dataclass

from lorafleet_contracts.capacity import (
    PROJECTIONS,
    MemoryBudget,
    ModelShape,
    kv_bytes_per_token,
    plan_memory,
    rank_unit_parameters,
    weight_bytes,
)
from lorafleet_contracts.probe import FORCED, PROBE_TOKENS, PROBES
from lorafleet_engine.errors import DoesNotFitError
from lorafleet_engine.memory.geometry import RESERVED_PAGES, PoolGeometry, pages_for_tokens
from lorafleet_engine.messages import StepLimits

ROW_HEADROOM = 4
"""Rows of rank provided for, in multiples of what full seven-projection adapters would need: narrow ones need more."""
LEAST_ROWS = 1024
INDEX_BYTES = FLOAT_BYTES = 4
GRAPH_EVERY = 8
"""Batch sizes between two graphs; four are below the first (runner/graphs.py)."""
MIXED_GRAPHS, MIXED_TOKENS = 32, 1024
"""Graphs of steps with prompts, each with about twice a decode step's launches; most tokens of prompts in one."""
SHARED_ROWS, SHARED_CHUNKS = 512, 16
"""Rows of queries that programs sharing the contexts of a few chunks leave, and of how many chunks (graphs' most)."""
GRAPH_LAYER_BYTES = 280_000
"""What the driver holds of one layer of a captured step: 487 MB for 70 graphs of 28 layers were measured."""
DRAWN_ROWS = 64
"""Rows that runner/sampler.py draws at a time, and what that takes a logit at most (49 measured where it is sorted)."""
DRAWN_BYTES = 52


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The budget and what follows from it: `pages` of the pool (reserved ones included), `table_rows` of rank,
    `kv_floor` pages that adapters can never take (one sequence of full length)."""

    budget: MemoryBudget
    pages: int
    table_rows: int
    kv_floor: int


def plan_engine_memory(
    shape: ModelShape,
    geometry: PoolGeometry,
    limits: StepLimits,
    max_model_len: int,
    usable: int,
    *,
    fp8: bool = False,
    cuda: bool = False,
) -> MemoryPlan:
    """Divide `usable` bytes; `fp8` says how projections are held, `cuda` that fixed kernels and graphs run the steps.

    Raises BaseDoesNotFitError, or DoesNotFitError when one full sequence would not fit.
    """
    weights = weight_bytes(shape, geometry.dtype_bytes, fp8=fp8)
    unit = rank_unit_parameters(shape) * geometry.dtype_bytes
    row_bytes = geometry.layers * geometry.layer_columns * INDEX_BYTES
    left = max(usable - weights, 0)
    table_rows = max(LEAST_ROWS, ROW_HEADROOM * (left // 4) // unit)
    fixed = table_rows * row_bytes + RESERVED_PAGES * geometry.page_bytes
    fixed += (cuda_bytes if cuda else activation_bytes)(shape, limits, max_model_len, geometry.dtype_bytes)
    fixed += check_bytes(shape, geometry.dtype_bytes) if fp8 else 0
    budget = plan_memory(usable, weights, fixed, kv_bytes_per_token(shape, geometry.dtype_bytes))
    kv_floor = pages_for_tokens(max_model_len)
    if budget.kv_tokens < max_model_len:
        raise DoesNotFitError("KV tokens for one sequence of full length", max_model_len, budget.kv_tokens)
    pages = budget.kv // geometry.page_bytes + budget.adapters // geometry.page_bytes + RESERVED_PAGES
    return MemoryPlan(budget, pages, table_rows, kv_floor)


def check_bytes(shape: ModelShape, dtype_bytes: int) -> int:
    """Most that checking an adapter on a rounded base takes (quality/checking.py): one layer as published in use, the
    next one coming, the first one rounded, and the probe set's tokens in both arms with their logits."""
    layer = sum(math.prod(shape.projection(module)) for module in PROJECTIONS)
    stream = len(PROBES) * PROBE_TOKENS * (4 * shape.hidden + 3 * shape.intermediate) * dtype_bytes
    logits = 2 * len(PROBES) * (FORCED + 1) * shape.vocab * (dtype_bytes + 4)
    return layer * (2 * dtype_bytes + 1) + 2 * stream + logits


def activation_bytes(shape: ModelShape, limits: StepLimits, max_model_len: int, dtype_bytes: int) -> int:
    """Most that one step of the reference kernels holds at a time beside weights and pool: the stream and the widest
    layer of its tokens, the gathered context of its decodes in one layer, the gathered rows of its adapters in one
    group, and the logits."""
    heads, cache_row = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    stream = limits.tokens * _token_bytes(shape, dtype_bytes)
    context = limits.sequences * max_model_len * 2 * cache_row * dtype_bytes
    group = max(3 * shape.hidden + heads + 2 * cache_row, 2 * (shape.hidden + shape.intermediate))
    adapters = limits.rank_sum * (group * dtype_bytes + limits.tokens * 3)
    logits = limits.sequences * shape.vocab * (dtype_bytes + 2 * 4)
    return stream + context + adapters + logits


def cuda_bytes(shape: ModelShape, limits: StepLimits, max_model_len: int, dtype_bytes: int) -> int:
    """The same on CUDA, where nothing is gathered: the tokens of a step that runs as it is and, apart from those, of
    the widest graph; what attention's splits and adapters' hidden values leave in between; the graphs themselves; a
    step's numbers and the table of angles; logits, and what is drawn from them at a time. What libraries take for
    themselves (cuBLAS's workspaces, kernels' code) is beside `usable`, as the CUDA context is."""
    graphs = 2 * (limits.sequences // GRAPH_EVERY + GRAPH_EVERY // 2 + MIXED_GRAPHS)
    held = graphs * shape.layers * GRAPH_LAYER_BYTES
    mixed = limits.sequences + min(MIXED_TOKENS, limits.tokens)
    tokens = (limits.tokens + limits.sequences + mixed) * _token_bytes(shape, dtype_bytes)
    splits = 4 * limits.sequences * shape.heads + SHARED_ROWS * (shape.heads + SHARED_CHUNKS * shape.kv_heads)
    splits *= (shape.head_dim + 2) * FLOAT_BYTES
    adapters = 2 * limits.rank_sum * (limits.tokens // 16 + limits.sequences) * FLOAT_BYTES
    adapters += 3 * limits.rank_sum * mixed * dtype_bytes
    numbers = limits.sequences * pages_for_tokens(max_model_len) * INDEX_BYTES
    numbers += max_model_len * shape.head_dim * FLOAT_BYTES
    drawn = min(limits.sequences, DRAWN_ROWS) * shape.vocab * DRAWN_BYTES
    logits = limits.sequences * shape.vocab * dtype_bytes
    return held + tokens + splits + adapters + numbers + drawn + logits


def _token_bytes(shape: ModelShape, dtype_bytes: int) -> int:
    """The stream and the widest layer of one token."""
    heads, cache_row = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    widest = max(heads + 2 * cache_row, 3 * shape.intermediate)
    return (4 * shape.hidden + 2 * widest) * dtype_bytes
