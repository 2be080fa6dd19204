"""Whole steps on the CPU and on a GPU: logits against the plain model, graphs against eager steps, adapters that come
and go beside running answers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.bench.bench import Bench
from lorafleet_engine.bench.engine import RandomSource, install, random_adapter
from lorafleet_engine.bench.judge import FLOAT32_BOUND, PARITY, Judge, relative_l2
from lorafleet_engine.bench.options import TINY, Options
from lorafleet_engine.bench.plain import PlainModel
from lorafleet_engine.bench.session import EnginePlan
from lorafleet_engine.bench.workload import QWEN25_7B, prompts
from lorafleet_engine.messages import LoadAdapter, StepLimits, UnloadAdapter
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.runner.assembly import EngineCore, Placement, assemble
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan

pytestmark = pytest.mark.heavy

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
}
RANKS = (8, 16, 1, 64, 5, 32)
ADAPTERS = 32
BASE_ROWS_BOUND = 2e-3
STRONG = 10


@dataclass(frozen=True)
class Steps:
    """A core with adapters a0000, a0001... in it, and what judges its logits."""

    core: EngineCore
    judge: Judge
    source: RandomSource

    def decoding(self, adapters: list[int | None], more: int = 2) -> StepPlan:
        """The plan of a step in which one sequence for each of `adapters` decodes."""
        self.clear()
        keys = [None if number is None else f"a{number:04d}" for number in adapters]
        for row, prompt in enumerate(prompts(len(keys), 24, seed=3, vocab=2000)):
            key = keys[row]
            adapter = None if key is None else self.core.residency.get(key)
            self.core.scheduler.submit(Sequence(str(row), prompt, 900, adapter=adapter))
        return self._walk(len(keys), more)

    def _walk(self, rows: int, more: int) -> StepPlan:
        """Run steps until all rows decode, then `more`; the plan of the next one, which is not run."""
        while True:
            plan = self.core.scheduler.plan()
            assert plan is not None
            if plan.decodes == rows == len(plan.works):
                if not more:
                    return plan
                more -= 1
            self.core.scheduler.commit(plan, self.core.runner.logits(plan).argmax(-1).tolist())

    def clear(self) -> None:
        for sequence in [*self.core.scheduler.running, *self.core.scheduler.waiting]:
            self.core.scheduler.remove(sequence)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def steps(request: pytest.FixtureRequest) -> Iterator[Steps]:
    torch.set_num_threads(1)
    device = torch.device(request.param)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = parse_config({**QWEN25_7B, **SHAPE}, {})
    source = RandomSource(device, dtype, spread=0.05)
    limits = StepLimits(tokens=256, sequences=64, distinct_adapters=64, rank_sum=4096)
    core = assemble(config, source, Placement(device, dtype, 1 << 30, 1024, limits))
    matrices = [random_adapter(config, source, number, RANKS[number % len(RANKS)]) for number in range(ADAPTERS)]
    for number, each in enumerate(matrices):
        install(core, f"a{number:04d}", each)
    judge = Judge(core, PlainModel(config, source, torch.float32), PlainModel(config, source, dtype), matrices)
    yield Steps(core, judge, source)
    core.close()


@pytest.mark.parametrize("rows", [1, 3, 16, 33])
def test_logits_are_the_plain_model_s_and_graphs_give_eager_s_to_the_bit(steps: Steps, rows: int) -> None:
    plan = steps.decoding([None if row % 5 == 4 else row % ADAPTERS for row in range(rows)])
    found = steps.judge.check(plan)
    assert found["ok"], found


@pytest.mark.parametrize("module", PROJECTIONS)
def test_no_projection_s_update_is_lost(steps: Steps, module: str) -> None:
    """An adapter of one projection, so strong that without it the logits are far away."""
    core, source = steps.core, steps.source
    whole = random_adapter(core.config, source, 77, 16)
    own = {place: (down, STRONG * up) for place, (down, up) in whole.items() if place[1] == module}
    install(core, "a9000", own)
    plan = steps.decoding([9000, 9000, 9000])
    tokens = [work.sequence.tokens for work in plan.works]
    got = core.runner.logits(plan).float()
    truth, rounded = (model.logits(tokens, [own] * 3) for model in (steps.judge.truth, steps.judge.rounded))
    bound = max(FLOAT32_BOUND, PARITY * relative_l2(rounded, truth))
    assert relative_l2(got, truth) <= bound
    assert relative_l2(steps.judge.truth.logits(tokens, [None] * 3), truth) > 10 * bound
    steps.clear()
    core.residency.remove("a9000")


def test_any_number_of_distinct_adapters(steps: Steps) -> None:
    for distinct in (0, 1, 2, 3, 5, 8, 13, 21, 32):
        choices: list[int | None] = [row % distinct if distinct else None for row in range(32)]
        plan = steps.decoding(choices)
        assert len(plan.adapters) == distinct
        found = steps.judge.check(plan)
        assert found["ok"], (distinct, found)


def test_long_answers_stay_right(steps: Steps) -> None:
    plan = steps.decoding([*range(7), None], more=300)
    found = steps.judge.check(plan)
    assert found["ok"], found


@pytest.mark.parametrize(("rows", "lengths"), [(0, (5,)), (3, (40, 1, 17)), (16, (100, 60)), (33, (150,))])
@pytest.mark.parametrize("adapted", [False, True])
def test_prompts_beside_decodes(steps: Steps, rows: int, lengths: tuple[int, ...], adapted: bool) -> None:
    """On CUDA these steps run in graphs."""
    steps.clear()
    if rows:
        before = steps.decoding([row % ADAPTERS if adapted and row % 3 else None for row in range(rows)])
        steps.core.scheduler.commit(before, steps.core.runner.logits(before).argmax(-1).tolist())
    for number, length in enumerate(lengths):
        adapter = steps.core.residency.get(f"a{7 + number:04d}") if adapted else None
        prompt = prompts(1, length, seed=11 + number, vocab=2000)[0]
        steps.core.scheduler.submit(Sequence(f"new{number}", prompt, 900, adapter=adapter))
    plan = steps.core.scheduler.plan()
    assert plan is not None
    assert len(plan.works) == rows + len(lengths)
    found = steps.judge.check(plan)
    assert found["ok"], found
    if steps.core.runner.asynchronous:
        graphs = steps.core.runner._graphs
        assert graphs is not None
        assert any(shape.chunks for shape in graphs._captured)


def test_base_rows_do_not_feel_the_adapters_of_others(steps: Steps) -> None:
    """Within one graph to the bit; against the graph without LoRA within rounding."""
    some = steps.decoding([None if row % 2 else row for row in range(16)])
    with_some = steps.core.runner.logits(some)[1::2].clone()
    others = steps.decoding([None if row % 2 else 31 - row for row in range(16)])
    with_others = steps.core.runner.logits(others)[1::2].clone()
    none = steps.decoding([None] * 16)
    alone = steps.core.runner.logits(none)[1::2].clone()
    if _same_tokens(some, none):
        assert relative_l2(with_some.float(), alone.float()) <= BASE_ROWS_BOUND
    if _same_tokens(some, others):
        assert torch.equal(with_some, with_others)
    assert _same_tokens(some, others)


def _same_tokens(first: StepPlan, second: StepPlan) -> bool:
    pairs = list(zip(first.works, second.works, strict=True))[1::2]
    return all(one.sequence.tokens == two.sequence.tokens for one, two in pairs)


def test_another_adapter_under_the_same_name_answers_anew_and_pages_come_back(steps: Steps) -> None:
    core, config = steps.core, steps.core.config
    steps.clear()
    free = core.pages.free
    logits = []
    for seed in (900, 901, 900):
        install(core, "x0000", random_adapter(config, steps.source, seed, 16))
        sequence = Sequence("x", prompts(1, 24, seed=3, vocab=2000)[0], 900, adapter=core.residency.get("x0000"))
        core.scheduler.submit(sequence)
        plan = core.scheduler.plan()
        assert plan is not None
        logits.append(core.runner.logits(plan).clone())
        steps.clear()
        core.residency.remove("x0000")
        assert core.pages.free == free
    assert torch.equal(logits[0], logits[2])
    assert not torch.equal(logits[0], logits[1])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_loads_and_unloads_change_no_running_answer(device: str, tmp_path: Path) -> None:
    dims = replace(TINY, memory_bytes=(1 << 30) if device == "cuda" else TINY.memory_bytes)
    bench = Bench(Options(tmp_path / "r", tmp_path / "memory", tmp_path, dims, device, 1, 60, 90, "abc"))
    session = bench.session(EnginePlan(StepLimits(tokens=64, sequences=4), 256))
    used, others = bench.adapters(3, "mixed"), bench.adapters(20, "mixed")[3:]
    session.keep(used)
    feed = bench.prompts(4, 8, seed=1)

    def answers(disturb: list[list[LoadAdapter | UnloadAdapter]]) -> list[tuple[int, ...]]:
        requests = session.requests(feed, [*used, None], 60)
        run = session.run([requests, *disturb])
        return [tuple(run.answer(request.request_id)) for request in requests]

    quiet = answers([])
    loads: list[list[LoadAdapter | UnloadAdapter]] = [[LoadAdapter(each.key, each.ref)] for each in others]
    assert answers([*loads, *([UnloadAdapter(each.key)] for each in others)]) == quiet
    assert len(set(quiet)) == 4
    session.check(used)
