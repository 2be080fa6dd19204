"""Adapters come and go beside running steps: their bytes are right, and nobody else notices. On a GPU the copies run on
streams of their own while the steps do."""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lorafleet_engine.bench.bench import Bench
from lorafleet_engine.bench.catalogue import Blob
from lorafleet_engine.bench.options import TINY, Options
from lorafleet_engine.memory.geometry import page_slices
from lorafleet_engine.memory.pages import Owner
from lorafleet_engine.messages import (
    AdapterLoaded,
    AdapterRejected,
    AdapterUnloaded,
    FromLoop,
    Generate,
    LoadAdapter,
    SamplingParams,
    StepLimits,
    ToLoop,
    UnloadAdapter,
)
from lorafleet_engine.runner.assembly import EngineCore, Placement, assemble
from tests.engine.support.driver import LoopDriver, collect

SHAPE = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "vocab_size": 512}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
DIMS = replace(TINY, overrides={**SHAPE, **HEADS}, dtype="bfloat16", catalogue=120)
LIMITS = StepLimits(tokens=256, sequences=32, distinct_adapters=32, rank_sum=2048)
PATIENCE_S, IDLE_S = 60, 1e-4
CUDA_MEGABYTES = 512
"""What graphs and libraries take beside."""


class Fleet(LoopDriver):
    """An engine over random weights, and a catalogue of adapters that each have bytes of their own."""

    def __init__(self, device: str, folder: Path, megabytes: int) -> None:
        self.bench = Bench(Options(folder / "r", folder / "m", folder, DIMS, device, 1, 60, 90, "abc"))
        megabytes += CUDA_MEGABYTES if device == "cuda" else 0
        placement = Placement(torch.device(device), torch.bfloat16, megabytes << 20, 512, LIMITS)
        super().__init__(assemble(self.bench.config, self.bench._source, placement), folder / "blobs")

    def until(self, kind: type[FromLoop], *messages: ToLoop) -> FromLoop:
        """Send, and take turns until the first answer of this kind."""
        for news in self.turns(*messages):
            for each in news:
                if isinstance(each, kind | AdapterRejected):
                    assert isinstance(each, kind), each
                    return each
        raise AssertionError("no answer")

    def turns(self, *messages: ToLoop) -> Iterator[list[FromLoop]]:
        """The news of turn after turn, for PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        yield self.post(*messages)
        while time.monotonic() < deadline:
            time.sleep(IDLE_S)  # as a loop's mailbox waits: the copier's threads want the interpreter, too
            yield self.post()

    def bring(self, blob: Blob, key: str | None = None) -> None:
        self.until(AdapterLoaded, LoadAdapter(key or blob.key, blob.ref))

    def drop(self, key: str) -> None:
        self.until(AdapterUnloaded, UnloadAdapter(key))

    def answers(self, requests: Sequence[Generate]) -> dict[str, list[int]]:
        self.mailbox.outbox.clear()
        return {name: answer.tokens for name, answer in self.run(requests).items()}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(name: str, adapter: str | None, length: int = 16) -> Generate:
    prompt = tuple(range(7, 7 + 20 + sum(map(ord, name)) % 9))
    return Generate(name, adapter, prompt, SamplingParams(length, temperature=0.0, ignore_eos=True))


def held(core: EngineCore, key: str, blob: Blob) -> bytes:
    """What the pool's pages hold of a version, put together."""
    resident = core.residency.get(key)
    assert resident is not None
    pages = core.runner.pool.page_bytes
    slices = page_slices(core.geometry, blob.ref.module_ranks)
    parts = [pages[page, :size].cpu() for page, (_, size) in zip(resident.pages, slices, strict=True)]
    return torch.cat(parts).numpy().tobytes()


def test_many_loads_at_once_bring_the_right_bytes(device: str, tmp_path: Path) -> None:
    fleet = Fleet(device, tmp_path, 512)
    blobs = fleet.bench.adapters(40, "mixed")
    for _ in fleet.turns(*(LoadAdapter(blob.key, blob.ref) for blob in blobs)):
        if sum(isinstance(each, AdapterLoaded) for each in fleet.mailbox.outbox) == len(blobs):
            break
    for blob in blobs:
        assert held(fleet.core, blob.key, blob) == Path(blob.ref.path).read_bytes()
    assert [version.phase for version in fleet.state.versions] == ["resident"] * len(blobs)


@pytest.mark.heavy
def test_running_answers_are_untouched_by_loads_and_unloads_beside_them(device: str, tmp_path: Path) -> None:
    fleet = Fleet(device, tmp_path, 512)
    blobs = fleet.bench.adapters(104, "mixed")
    own, others = blobs[:4], blobs[4:]
    for blob in own:
        fleet.bring(blob)
    requests = [ask(f"r{number}", [*own, None][number % 5] and own[number % 5].key, 150) for number in range(4)]
    requests.append(ask("base", None, 150))
    expected = fleet.answers(requests)
    fleet.mailbox.outbox.clear()
    fleet.post(*requests)
    for blob in others:
        fleet.bring(blob)
        fleet.drop(blob.key)
    for _ in fleet.turns():
        if not fleet.state.running and not fleet.state.waiting:
            break
    found = collect(fleet.mailbox.outbox)
    assert {name: found[name].tokens for name in expected} == expected
    assert fleet.core.residency.bytes == sum(blob.ref.bytes for blob in own)


def test_the_same_name_with_other_bytes_gives_the_other_answers(device: str, tmp_path: Path) -> None:
    fleet = Fleet(device, tmp_path, 256)
    one, two = fleet.bench.adapters(8, "64")[:2]
    fleet.bring(one, "one")
    fleet.bring(two, "two")
    expected = {**fleet.answers([ask("x", "one")]), **fleet.answers([ask("x2", "two")])}  # alone, as they are below
    assert expected["x"] != expected["x2"]
    for round_ in range(3):
        fleet.drop("one")
        fleet.bring(two, "one")
        assert fleet.answers([ask("x2", "one")]) == {"x2": expected["x2"]}, round_
        fleet.drop("one")
        fleet.bring(one, "one")
        assert fleet.answers([ask("x", "one")]) == {"x": expected["x"]}, round_


@pytest.mark.heavy
def test_soak_at_95_percent_occupancy(device: str, tmp_path: Path) -> None:
    """A thousand loads and unloads into whatever pages are free: every load that fits succeeds, nothing grows."""
    fleet = Fleet(device, tmp_path, 512)
    dice = random.Random(5)
    blobs = fleet.bench.adapters(64, "mixed")
    core = fleet.core
    free = core.pages.free
    needed = {blob.key: core.geometry.pages_of(blob.ref.module_ranks) for blob in blobs}
    room = min(core.plan.budget.adapters // core.geometry.page_bytes, sum(needed.values())) * 9 // 10
    taken = core.pages.take(free - room, Owner.KV)
    resident: dict[str, Blob] = {}
    for number in range(1000):
        key, blob = f"v{number}", dice.choice(blobs)
        while core.pages.free < needed[blob.key]:
            gone = dice.choice(list(resident))
            fleet.drop(gone)
            del resident[gone]
        fleet.bring(blob, key)
        resident[key] = blob
        if number % 100 == 99:
            assert core.pages.free < 0.05 * core.pages.total
            for name, each in resident.items():
                assert held(core, name, each) == Path(each.ref.path).read_bytes()
        fleet.mailbox.outbox.clear()
    for key in resident:
        fleet.drop(key)
    core.pages.give(taken, Owner.KV)
    assert (core.pages.free, core.residency.bytes) == (free, 0)
    assert (fleet.state.counters.loads, fleet.state.counters.unloads) == (1000, 1000)
