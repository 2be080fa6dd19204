from pathlib import Path

import pytest

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.disk_cache import DiskCache
from lorafleet_engine.loader.host_cache import HostCache, HostEntry
from lorafleet_engine.loader.messages import AdapterFacts
from lorafleet_engine.messages import BlobRef


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


def admit(cache: DiskCache, number: int, size: int) -> None:
    with cache.temporary() as folder:
        (folder / "weights").write_bytes(b"x" * size)
        cache.admit(folder, digest(number))


def present(cache: DiskCache, number: int) -> bool:
    with cache.using(digest(number)) as folder:
        return folder is not None


def test_the_least_recently_used_folder_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100)
    admit(cache, 1, 40)
    admit(cache, 2, 40)
    assert present(cache, 1)

    admit(cache, 3, 40)

    assert [present(cache, number) for number in (1, 2, 3)] == [True, False, True]


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100)
    admit(cache, 1, 60)

    with cache.using(digest(1)), pytest.raises(JobError) as caught:
        admit(cache, 2, 60)

    assert caught.value.code == ProblemCode.DOES_NOT_FIT
    assert present(cache, 1)


def test_the_base_counts_and_is_never_evicted(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100)
    with cache.temporary() as folder:
        (folder / "weights").write_bytes(b"x" * 70)
        base = cache.admit_base(folder, "key")

    admit(cache, 1, 30)
    with pytest.raises(JobError):
        admit(cache, 2, 31)

    assert (base / "weights").exists()


def test_a_new_cache_keeps_folders_and_drops_leftovers(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100)
    admit(cache, 1, 10)
    (tmp_path / "tmp" / "half").mkdir()

    again = DiskCache(tmp_path, 100)

    assert present(again, 1)
    assert not any((tmp_path / "tmp").iterdir())


def store(cache: HostCache, number: int, size: int) -> Path:
    path = cache.reserve(digest(number), size)
    path.write_bytes(b"x" * size)
    facts = AdapterFacts(digest(number), size, size, 8, (), "", ())
    cache.store(digest(number), HostEntry(facts, BlobRef(str(path), size, "float32", 8, ()), None))
    return path


def test_a_pinned_blob_stays_until_released(tmp_path: Path) -> None:
    cache = HostCache(tmp_path / "host", 100)
    path = store(cache, 1, 60)

    with pytest.raises(JobError) as caught:
        cache.reserve(digest(2), 60)
    assert caught.value.code == ProblemCode.DOES_NOT_FIT
    assert path.exists()

    cache.release(digest(1))
    store(cache, 2, 60)
    assert not path.exists()
    assert cache.take(digest(1)) is None


def test_reservations_count(tmp_path: Path) -> None:
    cache = HostCache(tmp_path / "host", 100)
    cache.reserve(digest(1), 60)

    with pytest.raises(JobError):
        cache.reserve(digest(2), 60)

    cache.abandon(digest(1))
    cache.reserve(digest(2), 60)


def test_a_taken_blob_is_pinned_again(tmp_path: Path) -> None:
    cache = HostCache(tmp_path / "host", 100)
    store(cache, 1, 60)
    cache.release(digest(1))
    assert cache.take(digest(1)) is not None

    with pytest.raises(JobError):
        cache.reserve(digest(2), 60)


def test_blobs_of_an_earlier_loader_are_removed(tmp_path: Path) -> None:
    store(HostCache(tmp_path / "host", 100), 1, 60)

    HostCache(tmp_path / "host", 100)

    assert not any((tmp_path / "host").iterdir())


def test_a_dropped_blob_is_gone_unless_somebody_reads_it(tmp_path: Path) -> None:
    cache = HostCache(tmp_path / "host", 100)
    path = store(cache, 1, 60)

    cache.drop(digest(1))
    assert path.exists()

    cache.release(digest(1))
    cache.drop(digest(1))
    cache.drop(digest(1))

    assert not path.exists()
    assert cache.take(digest(1)) is None
    assert cache.bytes == 0
