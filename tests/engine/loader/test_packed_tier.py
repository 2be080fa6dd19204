"""Packed adapters survive on the disk tier, are known to be whole, and make parsing unnecessary."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_contracts.digest import adapter_files, folder_digest
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.disk_cache import DiskCache
from lorafleet_engine.loader.host_cache import HostCache, HostEntry
from lorafleet_engine.loader.jobs import Jobs
from lorafleet_engine.loader.messages import AdapterFacts, LoaderConfig, PackAdapter
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.packed_tier import BLOB, ENTRY, Checksum, PackedTier, fingerprint_of
from lorafleet_engine.messages import BlobRef
from tests.engine.support.tiny import TinyModel

DIGEST = f"sha256:{7:064x}"
SIZE = (9 << 20) + 12


@pytest.fixture
def tier(tmp_path: Path) -> PackedTier:
    """With one packed adapter of nine and a bit MiB, kept, and gone from the host tier."""
    made = PackedTier(DiskCache(tmp_path / "disk", 1 << 30), HostCache(tmp_path / "host", 12 << 20), "print")
    path = made.host.reserve(DIGEST, SIZE)
    path.write_bytes(bytes(range(256)) * (SIZE // 256) + b"x" * (SIZE % 256))
    facts = AdapterFacts(DIGEST, SIZE, SIZE, 8, ("q_proj",), "tiny", ("a warning",))
    entry = HostEntry(facts, BlobRef(str(path), SIZE, "float32", 8, ((8, 0), (4, 8))), "template")
    made.host.store(DIGEST, entry)
    made.keep(DIGEST)
    made.host.release(DIGEST)
    other = made.host.reserve("other", 8 << 20)  # the first makes way
    assert not path.exists()
    made.host.abandon("other")
    assert not other.exists()
    return made


def kept(tmp_path: Path, name: str) -> Path:
    (path,) = (tmp_path / "disk").glob(f"adapters/*/{name}")
    return path


def test_what_was_kept_comes_back_whole(tier: PackedTier, tmp_path: Path) -> None:
    expected = kept(tmp_path, BLOB).read_bytes()
    entry = tier.restore(DIGEST)
    assert entry is not None
    assert Path(entry.blob.path).read_bytes() == expected
    assert entry.blob.module_ranks == ((8, 0), (4, 8))
    assert entry.facts == AdapterFacts(DIGEST, SIZE, SIZE, 8, ("q_proj",), "tiny", ("a warning",))
    assert entry.chat_template == "template"
    with pytest.raises(JobError):
        tier.host.reserve("other", 8 << 20)  # it is pinned


@pytest.mark.parametrize("place", [0, 70_000, SIZE - 1])
def test_a_damaged_byte_is_noticed(tier: PackedTier, tmp_path: Path, place: int) -> None:
    with kept(tmp_path, BLOB).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 16]))
    assert tier.restore(DIGEST) is None
    assert not list((tmp_path / "disk" / "adapters").iterdir())
    assert not list((tmp_path / "host").iterdir())


@pytest.mark.parametrize("name", [BLOB, ENTRY])
def test_a_cut_file_is_noticed(tier: PackedTier, tmp_path: Path, name: str) -> None:
    path = kept(tmp_path, name)
    path.write_bytes(path.read_bytes()[:-5])
    assert tier.restore(DIGEST) is None
    assert tier.restore(DIGEST) is None, "and again, now that it is gone"


def test_exchanged_blocks_are_noticed() -> None:
    block = 8 * 8192
    ordered, exchanged = Checksum(), Checksum()
    ordered.update(memoryview(b"a" * block + b"b" * block))
    exchanged.update(memoryview(b"b" * block + b"a" * block))
    assert ordered.value != exchanged.value


def test_a_full_host_tier_is_no_damage(tier: PackedTier) -> None:
    tier.host.reserve("other", 8 << 20)
    with pytest.raises(JobError):
        tier.restore(DIGEST)
    tier.host.abandon("other")
    assert tier.restore(DIGEST) is not None


def test_bytes_packed_for_something_else_are_never_taken(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    base = tiny("llama").directory
    config = LoaderConfig("host", 1, "disk", 1, "volumes", "float32", ("tiny",), PROJECTIONS, str(base))
    others = [
        replace(config, dtype="bfloat16"),
        replace(config, tensor_parallel=2),
        replace(config, target_modules=PROJECTIONS[:4]),
        replace(config, base_names=("tiny", "other")),
    ]
    prints = [fingerprint_of(each, base) for each in (config, *others)]
    prints.append(fingerprint_of(config, tiny("qwen2").directory))
    assert len(set(prints)) == len(prints)
    assert fingerprint_of(replace(config, host_dir="elsewhere", disk_bytes=2), base) == prints[0]


def test_a_second_loader_reads_instead_of_packing(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    model = tiny("llama")
    config = LoaderConfig(
        host_dir=str(tmp_path / "host"),
        host_bytes=1 << 24,
        disk_dir=str(tmp_path / "disk"),
        disk_bytes=1 << 26,
        volumes_dir=str(tmp_path),
        dtype="float32",
        base_names=("tiny",),
        target_modules=PROJECTIONS,
        base_dir=str(model.directory),
    )
    source = tmp_path / "source"
    shutil.copytree(model.adapters["all-r8"], source)
    job = PackAdapter(1, Origin(f"file://{source}"), folder_digest(source, adapter_files(source)))
    first = Jobs(config)
    packed = first.pack(job)
    assert packed.start_tier == "source"
    blob = Path(packed.blob.path).read_bytes()
    deadline = time.monotonic() + 30
    while len(list((tmp_path / "disk" / "adapters").iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.close()
    shutil.rmtree(source)
    for folder in (tmp_path / "disk" / "adapters").iterdir():
        if not (folder / BLOB).exists():
            shutil.rmtree(folder)
    again = Jobs(config).pack(job)
    assert again.start_tier == "disk"
    assert [phase for phase, _ in again.seconds] == ["read"]
    assert Path(again.blob.path).read_bytes() == blob
    assert (again.facts, again.chat_template) == (packed.facts, packed.chat_template)
    assert again.blob.module_ranks == packed.blob.module_ranks
