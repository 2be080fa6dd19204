"""NCCL between the shares of one model, inside the graphs: needs two GPUs, the first test one."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lorafleet_contracts.capacity import rank_unit_parameters
from lorafleet_engine.bench.catalogue import Blob, Catalogue
from lorafleet_engine.bench.engine import RandomSource
from lorafleet_engine.bench.published import publish_random
from lorafleet_engine.bench.session import Session
from lorafleet_engine.bench.workload import QWEN25_7B, prompts
from lorafleet_engine.messages import LoadAdapter, LoopConfig, StepLimits
from lorafleet_engine.model.shards import Shard
from lorafleet_engine.parallel.collective import Collective
from lorafleet_engine.parallel.copying import ShardCopier
from lorafleet_engine.parallel.gang import Gang
from lorafleet_engine.quality.merging import start_engine
from lorafleet_engine.quality.probes import distance, engine_logits
from lorafleet_engine.runner.assembly import Part, start_core
from lorafleet_engine.runner.pool import DTYPES

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]
SMALL: dict[str, Any] = {
    **QWEN25_7B,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}
ADAPTERS = 4
PROBES = tuple(map(tuple, prompts(3, 70, 7, vocab=1000)))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Start the small model over so many GPUs, with adapters of ranks 8, 16, 32 and 64."""
    cores = []

    def start(dtype: str, parts: int) -> Session:
        source = RandomSource(torch.device("cuda", 0), DTYPES[dtype])
        folder = tmp_path / dtype
        if not folder.exists():
            publish_random(folder, SMALL, source)
        core = start_engine(settings_for(folder, dtype, parts))
        cores.append(core)
        unit = rank_unit_parameters(core.config.shape, tensor_parallel=parts) * core.geometry.dtype_bytes
        session = Session(core, unit)
        session.keep(adapters(session, tmp_path))
        return session

    yield start
    for core in cores:
        core.close()
    cores.clear()
    gc.collect()
    torch.cuda.empty_cache()


def settings_for(folder: Path, dtype: str, parts: int) -> LoopConfig:
    limits = StepLimits(tokens=128, sequences=8)
    config = LoopConfig(str(folder), device="cuda", max_model_len=128, memory_bytes=parts * (1 << 30), limits=limits)
    return replace(config, dtype=dtype, tensor_parallel=parts)  # type: ignore[arg-type]


def adapters(session: Session, folder: Path) -> list[Blob]:
    core = session.core
    source = RandomSource(torch.device("cuda", 0), core.placement.dtype)
    return Catalogue(core.config, source, folder / "blobs").take(range(ADAPTERS))


def logits(session: Session) -> list[torch.Tensor]:
    """Of the base and of every adapter."""
    core, found = session.core, [engine_logits(session.core, PROBES, None)]
    for version in core.residency.versions():
        resident = core.residency.acquire(version.key)
        assert resident is not None
        found.append(engine_logits(core, PROBES, resident))
        core.residency.release(resident)
    return found


def test_sums_of_one_process_change_nothing(tmp_path: Path) -> None:
    """NCCL itself, eager and captured, without a second GPU."""
    publish_random(tmp_path, SMALL, RandomSource(torch.device("cuda", 0), torch.bfloat16))
    settings = settings_for(tmp_path, "bfloat16", 1)
    plain = engine_logits(start_core(settings), PROBES, None)
    device = torch.device("cuda", 0)
    collective = Collective(Shard(0, 1), str(tmp_path / "meeting"), device)
    try:
        core = start_core(settings, Part(add_up=collective.add_up))
        assert torch.equal(engine_logits(core, PROBES, None), plain)
        ints = torch.arange(4, dtype=torch.int32, device=device)
        collective.share(ints)
        assert ints.tolist() == [0, 1, 2, 3]
        torch.cuda.synchronize()
    finally:
        collective.close()


def test_a_share_arrives_through_a_thread(make: Callable[..., Session], tmp_path: Path) -> None:
    """What is cut out in memory and copied beside the steps is what the pool gets otherwise."""
    session = make("float32", 1)
    core, blob = session.core, adapters(session, tmp_path)[2]
    copier = ShardCopier(core.runner.pool, core.config.shape, Shard(0, 1))
    pages = core.geometry.pages_of(blob.ref.module_ranks)
    resident = core.residency.place("again", blob.ref.bytes, pages, blob.rank)
    copier.submit(resident, blob.ref, os.open(blob.ref.path, os.O_RDONLY))
    while not (arrived := copier.poll()):
        assert copier.busy
    assert [arrival.error for arrival in arrived] == [""]
    assert not copier.busy
    assert torch.equal(engine_logits(core, PROBES, resident), logits(session)[3])


needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@needs_two
def test_two_gpus_are_one_in_fp32(make: Callable[..., Session]) -> None:
    for one, two in zip(logits(make("float32", 1)), logits(make("float32", 2)), strict=True):
        assert (two - one).abs().max() <= 1e-4


@needs_two
def test_two_gpus_are_one_in_bfloat16(make: Callable[..., Session]) -> None:
    for one, two in zip(logits(make("bfloat16", 1)), logits(make("bfloat16", 2)), strict=True):
        assert distance(two, one).rel_l2 <= 1e-2


@needs_two
def test_loads_come_beside_steps_on_both(make: Callable[..., Session], tmp_path: Path) -> None:
    """Adapters leave and come while sequences decode; afterwards each answers as before."""
    session = make("float32", 2)
    before = logits(session)
    blobs = adapters(session, tmp_path)
    asked = session.requests([list(probe) for probe in PROBES], [blobs[0], None, blobs[0]], 40)
    for _ in range(3):
        session.keep(blobs[:1])
        run = session.run([asked, [], *([LoadAdapter(blob.key, blob.ref)] for blob in blobs[1:])])
        assert run.tokens == 3 * 40
        session.note_resident(blobs)
        asked = session.requests([list(probe) for probe in PROBES], [blobs[0], None, blobs[0]], 40)
    for old, new in zip(before, logits(session), strict=True):
        assert (new - old).abs().max() <= 1e-4


@needs_two
def test_a_killed_follower_is_noticed(tmp_path: Path) -> None:
    publish_random(tmp_path, SMALL, RandomSource(torch.device("cuda", 0), torch.bfloat16))
    noticed, words = threading.Event(), []

    def lost(message: str) -> None:
        words.append(message)
        noticed.set()

    core = start_engine(settings_for(tmp_path, "bfloat16", 2), lost)
    try:
        gang = core.team
        assert isinstance(gang, Gang)
        gang.followers[0].process.kill()
        assert noticed.wait(10)
        assert words == ["rank 1 ended with status -9"]
    finally:
        core.close()
