"""A step at a rounded shape, as graphs run it, gives what the exact step gives; neighbours never matter."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.kernels.lora import FEW_TOKENS, MANY_TOKENS, TileShape
from lorafleet_engine.messages import LoopConfig, StepLimits
from lorafleet_engine.runner.assembly import EngineCore, start_core
from lorafleet_engine.runner.graphs import decode_shapes, mixed_shape, mixed_shapes, rounded, with_lora
from lorafleet_engine.runner.packing import BASE_OWNER, StepShape, exact_shape
from lorafleet_engine.runner.rehearsal import rehearsal
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan
from tests.engine.support.tiny import TinyModel

KINDS = ("odd-r5", "r256", "narrow-qv", "layers")


@pytest.fixture(scope="module")
def core(tiny: Callable[[str], TinyModel]) -> EngineCore:
    model = tiny("qwen2")
    limits = StepLimits(tokens=64, sequences=16)
    made = start_core(LoopConfig(str(model.directory), max_model_len=96, memory_bytes=64 << 20, limits=limits))
    for kind in KINDS:
        packed = pack_adapter(model.adapters[kind], made.config.shape, "float32")
        resident = made.residency.place(kind, packed.bytes, made.geometry.pages_of(packed.module_ranks), packed.rank)
        made.runner.pool.install(resident, packed.data, packed.module_ranks)
    return made


def decoding(core: EngineCore, kinds: list[str | None], warm: int = 3) -> StepPlan:
    """Bring one sequence for each of `kinds` past its prompt, and plan the next step."""
    for sequence in [*core.scheduler.running, *core.scheduler.waiting]:
        core.scheduler.remove(sequence)
    for number, kind in enumerate(kinds):
        adapter = core.residency.get(kind) if kind else None
        prompt = [(7 * number + at) % 320 for at in range(1 + 9 * number)]
        core.scheduler.submit(Sequence(str(number), prompt, 50, adapter=adapter))
    while True:
        plan = core.scheduler.plan()
        assert plan is not None
        if plan.decodes == len(kinds) and warm == 0:
            return plan
        tokens = core.runner.logits(plan).argmax(-1).tolist()
        core.scheduler.commit(plan, tokens)
        warm -= plan.decodes == len(kinds)


@pytest.mark.parametrize(
    "kinds", [[None], ["odd-r5"], ["r256", None, "odd-r5"], ["layers", "narrow-qv", None, "r256", "odd-r5"]]
)
def test_rounded_step_as_exact_step(core: EngineCore, kinds: list[str | None]) -> None:
    plan = decoding(core, kinds)
    exact = core.runner.logits(plan).clone()
    padded = core.runner.eager_logits(plan)
    assert exact.shape == (len(kinds), 320)
    torch.testing.assert_close(padded, exact, atol=1e-4, rtol=1e-4)


def test_base_rows_are_bit_identical_whatever_the_others_use(core: EngineCore) -> None:
    """At the same rounded shape: 128 rows of rank, 4 decodes."""
    plans = (["odd-r5", None, "narrow-qv", None], ["layers", None, "layers", None], ["narrow-qv", None, "odd-r5", None])
    seen = []
    for kinds in plans:
        plan = decoding(core, list(kinds), warm=0)
        seen.append(core.runner.eager_logits(plan)[[1, 3]].clone())
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_rounded_shapes_are_few_and_large_enough() -> None:
    shapes = set()
    for decodes in range(1, 65):
        for rows in (0, 5, 128, 129, 960, 4096):
            exact = StepShape(decodes, decodes, 13, decodes, rows)
            shape = rounded(exact, most_pages=128, limits=StepLimits(rank_sum=4096))
            assert shape.decodes == shape.tokens == shape.samples >= decodes
            assert shape.pages == 128 * shape.decodes
            assert shape.rows >= rows
            assert (shape.rows == 0) == (rows == 0)
            shapes.add(shape)
    assert len({shape.decodes for shape in shapes}) == 4 + 7
    assert len(shapes) == 11 * 5
    assert {shape for shape in shapes if not shape.rows} <= set(
        decode_shapes(128, StepLimits(sequences=64), tiled=False)
    )
    assert rounded(StepShape(1, 1, 100, 1, 0), 100, StepLimits()).pages == 100
    mixed = rounded(StepShape(7, 3, 4, 2, 5, ((4, 4),)), 100, StepLimits())
    assert mixed == StepShape(8, 4, 4, 2, 5, ((4, 4),))


@pytest.mark.parametrize("kinds", [[None, None, None], ["odd-r5", None, "r256"]])
def test_rounded_step_with_prompts_as_exact_step(core: EngineCore, kinds: list[str | None]) -> None:
    """Three decodes become four rows, behind which the prompts' tokens stand."""
    before = decoding(core, kinds)
    core.scheduler.commit(before, core.runner.logits(before).argmax(-1).tolist())
    for number, kind in enumerate(("layers", None)):
        adapter = core.residency.get(kind) if kind and any(kinds) else None
        core.scheduler.submit(Sequence(f"new{number}", list(range(7 + number, 30)), 50, adapter=adapter))
    plan = core.scheduler.plan()
    assert plan is not None
    exact = core.runner.logits(plan).clone()
    torch.testing.assert_close(core.runner.eager_logits(plan), exact, atol=1e-4, rtol=1e-4)


def test_steps_with_few_tokens_of_prompts_have_few_shapes() -> None:
    limits, most = StepLimits(tokens=2048, sequences=256), 256
    shapes = {
        mixed_shape(StepShape(decodes + count, decodes, 9, decodes + 1, 0, ((count, count + 800),)), most, limits)
        for decodes in range(257)
        for count in range(1, 1025, 7)
    }
    assert None not in shapes
    captured = set(mixed_shapes(most, limits, tiled=True))
    assert shapes <= captured
    assert len(captured) == 2 * len(shapes) == 2 * 4 * 4
    assert {with_lora(shape, limits) for shape in shapes if shape} <= captured
    kinds: dict[TileShape, set[int]] = {FEW_TOKENS: set(), MANY_TOKENS: set()}
    for shape in captured:
        if shape.lists.segments:
            kinds[shape.lists.shape].add(shape.tokens - shape.decodes)
    assert kinds == {FEW_TOKENS: {64, 192}, MANY_TOKENS: {512, 1024}}
    close = mixed_shape(StepShape(17 + 64, 17, 9, 18, 0, ((64, 64),)), most, limits)
    assert close is not None
    assert (close.decodes, close.tokens, close.samples) == (64, 64 + 64, 80)
    assert mixed_shape(StepShape(1025, 0, 0, 1, 0, ((1025, 1025),)), most, limits) is None, "too many tokens"
    assert mixed_shape(StepShape(17, 0, 0, 17, 0, ((1, 1),) * 17), most, limits) is None, "too many prompts"


@pytest.mark.parametrize("kinds", [[None, None, None], ["odd-r5", None, "r256"]])
def test_a_step_packed_at_a_graph_s_shape_is_the_same_step(core: EngineCore, kinds: list[str | None]) -> None:
    plan = decoding(core, kinds)
    core.scheduler.commit(plan, core.runner.logits(plan).argmax(-1).tolist())
    core.scheduler.submit(Sequence("new", list(range(7, 30)), 50, adapter=core.residency.get("layers")))
    core.scheduler.submit(Sequence("other", list(range(9, 14)), 50))
    plan = core.scheduler.plan()
    assert plan is not None
    exact = exact_shape(plan, None)
    shape = mixed_shape(exact, 6, StepLimits(tokens=64, sequences=16))
    assert shape is not None
    packer, found = core.runner._packer, {}
    for name, each in (("exact", exact), ("padded", shape)):
        used = replace(each, rows=exact.rows)
        out = np.full(used.size, 77, dtype=np.int32)
        packer.pack(plan, None, used, out)
        found[name] = {field: out[where] for field, where in used.offsets().items()}
    one, other = found["exact"], found["padded"]
    real, rows = plan.tokens - plan.decodes, shape.decodes
    for field in ("tokens", "positions", "slots", "owners"):
        assert (other[field][rows : rows + real] == one[field][plan.decodes :]).all(), field
    assert (other["slots"][rows + real :] == 0).all()
    assert (other["owners"][rows + real :] == BASE_OWNER).all()
    assert other["chunk_counts"].tolist() == [23, 5, *[0] * 14]
    starts = other["table_starts"][rows:]
    for number, sequence in enumerate(work.sequence for work in plan.works[plan.decodes :]):
        here = other["tables"][starts[number] : starts[number] + len(sequence.pages)]
        assert here.tolist() == sequence.pages
    ends = other["samples"][: exact.samples] - rows
    assert (ends[plan.decodes :] == one["samples"][plan.decodes :] - plan.decodes).all()


def test_rehearsal_leaves_no_trace(core: EngineCore) -> None:
    plan = decoding(core, ["odd-r5", None])
    expected = core.runner.logits(plan).clone()
    for rehearsed in rehearsal(32, 16, adapters=True):
        assert torch.isfinite(core.runner.eager_logits(rehearsed)).all()
    assert torch.equal(core.runner.logits(plan), expected)
