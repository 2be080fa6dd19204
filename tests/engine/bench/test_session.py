"""The bench's engine: what it asserts before a figure, and that requests go the whole way through the loop."""

from dataclasses import replace
from pathlib import Path

import pytest

from lorafleet_engine.bench.bench import Batch, Bench, decode_ms
from lorafleet_engine.bench.catalogue import SharedBytesError
from lorafleet_engine.bench.options import FULL, TINY, Options
from lorafleet_engine.bench.session import BenchError, EnginePlan
from lorafleet_engine.messages import LoadAdapter, StepLimits

pytestmark = pytest.mark.heavy

PLAN = EnginePlan(StepLimits(tokens=64, sequences=4), 64)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(Options(tmp_path / "r", tmp_path / "memory", tmp_path, TINY, "cpu", 3, 60, 90, "abc"))


def test_resident_bytes_must_be_those_of_all_adapters(bench: Bench) -> None:
    session = bench.session(PLAN)
    one, two = bench.adapters(2, "mixed")
    session.keep([one, two])
    assert session.core.residency.bytes == (8 + 16) * bench.floor.rank_unit_bytes
    with pytest.raises(SharedBytesError, match="the device holds"):
        session.check([one])
    session.keep([two])
    assert session.core.residency.bytes == 16 * bench.floor.rank_unit_bytes


def test_every_request_gets_its_tokens(bench: Bench) -> None:
    session = bench.session(PLAN)
    (adapter,) = bench.adapters(1, "64")
    session.keep([adapter])
    requests = session.requests(bench.prompts(3, 8, 1), [adapter, None, adapter], 5)
    run = session.run([requests])
    assert run.tokens == 15
    assert [len(run.times[request.request_id]) for request in requests] == [5, 5, 5]
    assert 0 < sum(run.gaps(requests[0].request_id, 0)) < run.seconds


def test_a_refusal_is_no_figure(bench: Bench) -> None:
    session = bench.session(PLAN)
    (adapter,) = bench.adapters(1, "8")
    with pytest.raises(BenchError, match="version_missing"):
        session.run([session.requests(bench.prompts(1, 8, 1), [adapter], 5)])
    with pytest.raises(BenchError, match="after"):
        session.run([session.requests(bench.prompts(1, 60, 1), [None], 40)])  # cut at the window: too few tokens


def test_loads_come_one_before_each_step(bench: Bench) -> None:
    session = bench.session(PLAN)
    adapters = bench.adapters(3, "mixed")
    requests = session.requests(bench.prompts(1, 8, 1), [None], 9)
    run = session.run([requests, *([LoadAdapter(each.key, each.ref)] for each in adapters)])
    session.note_resident(adapters)
    assert run.tokens == 9


def test_decode_is_measured_as_often_as_asked(bench: Bench) -> None:
    assert len(decode_ms(bench, bench.session(PLAN), Batch(2, 8))) == 3


def test_a_plan_has_one_engine_until_it_is_dropped(bench: Bench) -> None:
    first = bench.session(PLAN)
    assert bench.session(PLAN) is first
    assert bench.session(EnginePlan(PLAN.limits, 32)) is not first
    assert bench.session(PLAN) is not first


def test_the_full_size_s_engines_are_legal(bench: Bench) -> None:
    """What a tiny size may hide: a step must hold more tokens than sequences."""
    full = Bench(replace(bench.options, dims=replace(FULL, memory_bytes=1)))
    plans = [full.plan(), full.narrow_plan(), full.long_plan(FULL.step_tokens, max(FULL.batches))]
    plans += [full.plan(cap) for cap in FULL.sweep_caps]
    plans.append(full.long_plan(FULL.beside + FULL.chunk_tokens, FULL.beside + 1))
    assert all(plan.limits.tokens > plan.limits.sequences for plan in plans)
