"""LoRA at true rank: the kernels against double precision, over popularity, ranks, missing projections and dtype."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from lorafleet_contracts.capacity import PROJECTIONS, ModelShape
from lorafleet_engine.kernels.lora import (
    FEW_TOKENS,
    MANY_TOKENS,
    LoraUpdate,
    TiledRows,
    TileShape,
    apply_lora,
    apply_update,
    begin_lora,
)
from lorafleet_engine.kernels.rms_norm import add_rms_norm
from lorafleet_engine.kernels.rope import HeadNorms, Heads, NewTokens, rotate_and_store
from lorafleet_engine.kernels.rope.reference import rotate_and_store as rotate_reference
from lorafleet_engine.kernels.silu_mul import silu_mul
from lorafleet_engine.kernels.silu_mul.reference import silu_mul as silu_mul_reference
from lorafleet_engine.memory.geometry import RESERVED_PAGES, pool_geometry
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.model.decoder import GROUPS
from lorafleet_engine.runner.graphs import batch_size, rounded
from lorafleet_engine.runner.inputs import InputBuilder
from lorafleet_engine.runner.lora_work import lora_work
from lorafleet_engine.runner.packing import StepPacker, exact_shape
from lorafleet_engine.runner.pool import DevicePool
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan, Work
from tests.engine.kernels.test_elementwise_kernel import DTYPES, error

pytestmark = pytest.mark.gpu

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1.2e-2}
LIMITS = StepLimits(tokens=512, sequences=64, rank_sum=2048)
LAYERS = 2


def model(hidden: int, intermediate: int, heads: int, kv_heads: int, dim: int) -> ModelShape:
    return ModelShape(LAYERS, hidden, intermediate, heads, kv_heads, dim, 128, False, False)


SMALL = model(64, 96, 4, 2, 16)
QWEN_7B = model(3584, 18944, 28, 4, 128)
SMOLLM = model(576, 1536, 9, 3, 64)

Matrices = dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Bench:
    """A pool with adapters in it, and the adapters as matrices (A [r, in], scaled B [r, out])."""

    shape: ModelShape
    builder: InputBuilder
    residents: list[Resident]
    matrices: list[Matrices]


def make_bench(shape: ModelShape, ranks: list[int], device: torch.device, dtype: torch.dtype) -> Bench:
    """Every third adapter lacks every second projection; pages and rows are scattered."""
    torch.manual_seed(len(ranks))
    size = torch.empty(0, dtype=dtype).element_size()
    geometry = pool_geometry(shape, size)
    layouts = [
        [[0 if number % 3 == 2 and place % 2 else rank for place in range(len(PROJECTIONS))] for _ in range(LAYERS)]
        for number, rank in enumerate(ranks)
    ]
    needs = [geometry.pages_of(layout) for layout in layouts]
    pages, rows = RESERVED_PAGES + sum(needs), 1 + sum(ranks)
    pool = DevicePool(geometry, pages, rows, device, dtype)
    free_pages = (torch.randperm(sum(needs)) + RESERVED_PAGES).tolist()
    free_rows = (torch.randperm(sum(ranks)) + 1).tolist()
    residents, matrices = [], []
    for number, (rank, layout, need) in enumerate(zip(ranks, layouts, needs, strict=True)):
        own: Matrices = {}
        for layer in range(LAYERS):
            for name, real in zip(PROJECTIONS, layout[layer], strict=True):
                fan_in, fan_out = shape.projection(name)
                down = torch.randn(real, fan_in, device=device) / math.sqrt(fan_in)
                own[layer, name] = (down.to(dtype), torch.randn(real, fan_out, device=device).to(dtype))
        blob = torch.cat([part.reshape(-1) for pair in own.values() for part in pair])
        taken = tuple(free_pages.pop() for _ in range(need))
        resident = Resident(str(number), rank, 0, taken, tuple(free_rows.pop() for _ in range(rank)))
        pool.install(resident, blob, layout)
        residents.append(resident)
        matrices.append(own)
    side = torch.cuda.Stream() if device.type == "cuda" else None
    rope = torch.zeros(64, 2, shape.head_dim // 2, device=device)
    heads = Heads(shape.heads, shape.kv_heads, shape.head_dim)
    builder = InputBuilder(geometry, pool, heads, None, rope, dtype, side, torch.zeros(1, dtype=torch.int32))
    return Bench(shape, builder, residents, matrices)


def plan_of(bench: Bench, choices: list[int | None]) -> StepPlan:
    """One decode for each choice of an adapter (None = base)."""
    works = []
    for number, choice in enumerate(choices):
        sequence = Sequence(str(number), [1, 2], 4, adapter=None if choice is None else bench.residents[choice])
        sequence.pages.append(0)
        works.append(Work(sequence, 1, 1, True))
    used = dict.fromkeys(bench.residents[choice] for choice in choices if choice is not None)
    return StepPlan(tuple(works), len(works), tuple(used))


def tiled(bench: Bench, plan: StepPlan, tiles: TileShape, *, padded: bool) -> TiledRows:
    work = lora_work(plan, tiles, batch_size(plan.decodes) if padded else plan.decodes)
    shape = exact_shape(plan, work)
    if padded:
        shape = rounded(shape, 16, LIMITS)
    packed = torch.zeros(shape.size, dtype=torch.int32)
    StepPacker(bench.builder.geometry, len(plan.works), 16, 0).pack(plan, work, shape, packed.numpy())
    ints = packed.to(bench.builder.pool.memory.device)
    rows = replace(bench.builder, ints=ints).build(ints, shape).lora
    assert isinstance(rows, TiledRows)
    rows.partial.fill_(math.nan)
    rows.hidden.fill_(math.nan)
    return rows


Consumer = Callable[[torch.Tensor, LoraUpdate | None], list[torch.Tensor]]
"""Takes a group's output and its update; returns what it makes of their sum."""


def applied(out: torch.Tensor, update: LoraUpdate | None) -> list[torch.Tensor]:
    added = out.clone()
    apply_update(added, update)
    return [added]


def consumer(shape: ModelShape, group: int, tokens: int, like: torch.Tensor) -> tuple[Consumer, Consumer]:
    """What reads a group's output, and the same in plain operations of any precision."""
    if group == 2:
        return (
            lambda out, update: [silu_mul(out, update)],
            lambda out, _: [silu_mul_reference(out)],
        )
    if group == 0:
        heads = Heads(shape.heads, shape.kv_heads, shape.head_dim)
        angles = torch.rand(tokens, 1, heads.dim // 2, device=like.device) * 6.28
        slots = torch.randperm(tokens, device=like.device)
        weights = [torch.rand(heads.dim, device=like.device).to(like.dtype) + 0.5 for _ in range(2)]

        def rotate(
            rotation: Callable[..., torch.Tensor], out: torch.Tensor, *update: LoraUpdate | None
        ) -> list[torch.Tensor]:
            norms = HeadNorms(*(weight.to(out.dtype) for weight in weights), 1e-6)
            new = NewTokens(slots, angles.cos(), angles.sin())
            cache = torch.full((2, tokens, heads.kv * heads.dim), math.nan, device=out.device, dtype=out.dtype)
            query = rotation(out, heads, new, (cache[0], cache[1]), norms, *update)
            return [query.flatten(1), cache[0, slots], cache[1, slots]]

        return (
            lambda out, update: rotate(rotate_and_store, out, update),
            lambda out, _: rotate(rotate_reference, out),
        )
    stream = torch.randn(tokens, shape.hidden, device=like.device).to(like.dtype)
    weight = torch.rand(shape.hidden, device=like.device).to(like.dtype) + 0.5

    def norm(out: torch.Tensor, _: LoraUpdate | None) -> list[torch.Tensor]:
        total = stream.to(out.dtype) + out
        return [total, total / (total.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.to(out.dtype)]

    return (
        lambda out, update: list(add_rms_norm(stream, out, weight, 1e-6, update)),
        norm,
    )


def check(bench: Bench, choices: list[int | None], tiles: TileShape, *, padded: bool) -> None:
    """Every group of every layer and what reads it against the matrices, twice the same; base rows the same to the bit
    whatever adapters the others use."""
    others = [None if choice is None else (choice + 1) % len(bench.residents) for choice in choices]
    rows, changed = (tiled(bench, plan_of(bench, chosen), tiles, padded=padded) for chosen in (choices, others))
    dtype, device = bench.builder.dtype, bench.builder.pool.memory.device
    tokens = len(rows.work.order)
    owners = torch.tensor([-1 if choice is None else choice for choice in choices], device=device)
    base, used = (owners < 0).nonzero()[:, 0], (owners >= 0).nonzero()[:, 0]
    for layer in range(LAYERS):
        for group, modules in enumerate(GROUPS):
            sizes = [bench.shape.projection(module) for module in modules]
            x = torch.randn(tokens, sizes[0][0], device=device).to(dtype)
            before = torch.randn(tokens, sum(width for _, width in sizes), device=device).to(dtype)
            right = before.double()
            for number, matrices in enumerate(bench.matrices):
                own = (owners == number).nonzero()[:, 0]
                parts = [matrices[layer, module] for module in modules]
                updates = [x[own].double() @ down.double().t() @ up.double() for down, up in parts]
                right[own] += torch.cat(updates, dim=1)
            fused, plain = consumer(bench.shape, group, tokens, before)
            results = []
            for lora in (rows, rows, changed):
                # Freed at once: what begin_lora takes next is this memory.
                torch.full((tokens, sizes[0][1]), math.nan, device=device)
                widths = [width for _, width in sizes]
                begun = begin_lora(x, lora, (layer, group), widths)
                update = apply_lora(before, x, begun, (layer, group), widths)
                assert update is not None
                results.append([*applied(before, update), *fused(before.clone(), update)])
            wanted = [right, *plain(right, None)]
            assert torch.equal(results[0][0][base], before[base])
            for first, again, other, expected in zip(*results, wanted, strict=True):
                assert torch.equal(first, again)
                assert torch.equal(first[base], other[base])
                assert torch.equal(first[len(choices) :], other[len(choices) :])
                assert error(first[used], expected[used]) < BOUNDS[dtype]
                assert not len(base) or error(first[base], expected[base]) < BOUNDS[dtype]
    assert not rows.arrived.any()


SMALL_CASES = {
    "small-mixed": ([5, 16, 20, 1], [0, 1, None, 2, 3, 1, 0]),
    "small-many-tokens": ([17], [0] * 19 + [None]),
}


@pytest.mark.parametrize("tiles", [FEW_TOKENS, MANY_TOKENS])
@pytest.mark.parametrize("case", SMALL_CASES)
def test_small(device: torch.device, case: str, tiles: TileShape) -> None:
    ranks, choices = SMALL_CASES[case]
    check(make_bench(SMALL, ranks, device, torch.float32), choices, tiles, padded=False)


POPULARITY: dict[str, list[int | None]] = {
    "alone": [0],
    "identical": [0] * 64,
    "distinct": [*range(32)],
    "uniform": [n % 8 for n in range(64)],
    "zipf": [0] * 33 + [1] * 16 + [2] * 8 + [3] * 4 + [4, 5, 6],
    "half-base": [None if n % 2 else n % 16 for n in range(64)],
}
RANKS = {"1": [1], "5": [5], "8": [8], "16": [16], "64": [64], "mixed": [8, 16, 32, 64, 5, 256, 1]}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [QWEN_7B, SMOLLM], ids=["qwen-7b", "smollm"])
@pytest.mark.parametrize("rank", RANKS)
def test_popularity_and_rank(device: torch.device, shape: ModelShape, rank: str, dtype: torch.dtype) -> None:
    if device.type == "cpu":
        pytest.skip("too large to interpret")
    ranks = [RANKS[rank][number % len(RANKS[rank])] for number in range(32)]
    bench = make_bench(shape, ranks, device, dtype)
    for choices in POPULARITY.values():
        for tiles in (FEW_TOKENS, MANY_TOKENS):
            check(bench, choices, tiles, padded=False)
            check(bench, choices, tiles, padded=True)
