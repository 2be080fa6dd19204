"""What the loader does for one job, over its two caches. Called by loader/process.py in worker threads.

The order is always: fetch into a temporary folder -> digest -> signature -> inspect -> admit to the disk tier -> pack
to the host tier -> keep the packed bytes on the disk tier, after the answer. Nothing unverified ever leaves the
temporary folder.
"""

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.digest import adapter_files, base_files, folder_digest
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.disk_cache import DiskCache
from lorafleet_engine.loader.fetching import check_base_in_place, digest_in_place, fetch_adapter, fetch_base
from lorafleet_engine.loader.host_cache import HostCache, HostEntry
from lorafleet_engine.loader.local_folder import LocalFolder
from lorafleet_engine.loader.messages import (
    AdapterFacts,
    BaseFetched,
    FetchBase,
    ForMerge,
    InspectAdapter,
    Inspected,
    LoaderConfig,
    PackAdapter,
    Packed,
    PackForMerge,
    StartTier,
)
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.packed_tier import PackedTier, fingerprint_of
from lorafleet_engine.loader.sources import Folder, open_folder

if TYPE_CHECKING:
    from lorafleet_engine.loader.packer import Packer

MERGE_BLOB = "merge.blob"


class Jobs:
    """The loader's work. Thread-safe: jobs for the same digest follow one another."""

    def __init__(self, config: LoaderConfig) -> None:
        self._config = config
        self._volumes_dir = Path(config.volumes_dir)
        self._disk = DiskCache(Path(config.disk_dir), config.disk_bytes)
        self._host = HostCache(Path(config.host_dir), config.host_bytes)
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._base_dir = None if config.base_dir is None else Path(config.base_dir)
        self._packer: Packer | None = None
        self._packer_lock = threading.Lock()
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="keeper")

    def fetch_base(self, job: FetchBase) -> BaseFetched:
        """Have the base model's files, verified. A volume's files are used in place. Raises JobError."""
        with closing(open_folder(job.origin, self._volumes_dir)) as source:
            if isinstance(source, LocalFolder):
                names = check_base_in_place(source)
                digest = digest_in_place(source, names) if job.digest else ""
                _compare(job.digest, digest)
                folder = source.path
            else:
                folder, digest = self._cached_base(job) or self._downloaded_base(job, source)
        self._base_dir, self._packer = folder, None
        return BaseFetched(job.job, str(folder), digest)

    def inspect(self, job: InspectAdapter) -> Inspected:
        """Fetch and verify an adapter, all its numbers too, onto the disk tier. Raises JobError."""
        with self._locks[job.digest or job.origin.uri]:
            if job.digest:
                with self._verified(job.digest) as folder:
                    if folder is not None and _is_trusted(folder, job.origin):
                        return Inspected(job.job, self._examine(folder, job.digest))
            return Inspected(job.job, self._fetch_adapter(job.origin, job.digest, self._examine))

    def _examine(self, folder: Path, digest: str) -> AdapterFacts:
        packer = self._need_packer()
        facts = packer.inspect(folder, digest)
        return replace(facts, warnings=(*facts.warnings, *packer.check_values(folder)))

    def pack(self, job: PackAdapter) -> Packed:
        """Have an adapter's blob on the host tier, pinned. Raises JobError."""
        with self._locks[job.digest]:
            entry = self._host.take(job.digest)
            if entry is not None:
                return _packed(job, entry, "host")
            began = time.monotonic()
            packed = self._packed_tier()
            entry = packed.restore(job.digest)
            if entry is not None:
                return _packed(job, entry, "disk", read=time.monotonic() - began)
            with self._verified(job.digest) as folder:
                start: StartTier = "source" if folder is None else "disk"
            if folder is None:
                self._fetch_adapter(job.origin, job.digest)
            fetched = time.monotonic()
            with self._disk.using(job.digest) as folder:
                if folder is None:
                    raise JobError(ProblemCode.DOES_NOT_FIT, "the disk cache is too small for the adapters in work")
                entry = self._pack(folder, job.digest)
            self._keeper.submit(packed.keep, job.digest)
            return _packed(job, entry, start, fetch=fetched - began, pack=time.monotonic() - fetched)

    def close(self) -> None:
        """End with the write to the disk tier that is under way; further ones are dropped."""
        self._keeper.shutdown(cancel_futures=True)

    def tier_bytes(self) -> tuple[int, int]:
        """Bytes that adapters take on the host tier and on the disk tier."""
        return self._host.bytes, self._disk.bytes

    def pack_for_merge(self, job: PackForMerge) -> ForMerge:
        """Have an adapter's float32 numbers in a file of their own. Raises JobError."""
        with self._locks[job.digest]:
            with self._verified(job.digest) as folder:
                missing = folder is None
            if missing:
                self._fetch_adapter(job.origin, job.digest)
            with self._disk.using(job.digest) as folder:
                if folder is None:
                    raise JobError(ProblemCode.DOES_NOT_FIT, "the disk cache is too small for the adapter to merge")
                packer = self._need_packer()
                facts = packer.inspect(folder, job.digest)
                blob = packer.pack(folder, self._disk.root / MERGE_BLOB, "float32")
                return ForMerge(job.job, facts, blob, packer.chat_template(folder))

    def warm_up(self) -> None:
        """Import what packing needs, ahead of the first adapter. Does nothing before the base model is there."""
        if self._base_dir is not None:
            self._need_packer()

    def release(self, digest: str, *, drop: bool = False) -> None:
        """Let a blob be evicted; with `drop` it is, once the disk tier has had it."""
        self._host.release(digest)
        if drop:
            self._keeper.submit(self._host.drop, digest)

    def _pack(self, folder: Path, digest: str) -> HostEntry:
        packer = self._need_packer()
        facts = packer.inspect(folder, digest)
        path = self._host.reserve(digest, facts.bytes)
        try:
            entry = HostEntry(facts, packer.pack(folder, path), packer.chat_template(folder))
            self._host.store(digest, entry)
        finally:
            self._host.abandon(digest)
        return entry

    def _packed_tier(self) -> PackedTier:
        base_dir = self._base_dir
        if base_dir is None:
            raise JobError(ProblemCode.LOADER_BUSY, "the base model is still being fetched")
        return PackedTier(self._disk, self._host, fingerprint_of(self._config, base_dir))

    def _fetch_adapter(
        self, origin: Origin, declared: str | None, look: Callable[[Path, str], AdapterFacts] | None = None
    ) -> AdapterFacts:
        with closing(open_folder(origin, self._volumes_dir)) as source, self._disk.temporary() as folder:
            digest = fetch_adapter(source, folder, self._disk.limit)
            _check_digest(source, declared or "", digest)
            if origin.signers:
                _check_signature(source, folder, origin)
            facts = (look or self._need_packer().inspect)(folder, digest)
            self._disk.admit(folder, digest)
        return facts

    @contextmanager
    def _verified(self, digest: str) -> Iterator[Path | None]:
        """The disk tier's folder, its bytes checked again: a damaged one is dropped and fetched anew."""
        with self._disk.using(digest) as folder:
            sound = folder is not None and folder_digest(folder, adapter_files(folder)) == digest
            yield folder if sound else None
        if folder is not None and not sound:
            self._disk.remove(digest)

    def _cached_base(self, job: FetchBase) -> tuple[Path, str] | None:
        folder = self._disk.base_folder(_base_key(job))
        if job.digest and folder.is_dir() and folder_digest(folder, base_files(folder)) == job.digest:
            return folder, job.digest
        return None

    def _downloaded_base(self, job: FetchBase, source: Folder) -> tuple[Path, str]:
        with self._disk.temporary() as folder:
            digest = fetch_base(source, folder, self._disk.limit)
            _check_digest(source, job.digest, digest)
            return self._disk.admit_base(folder, _base_key(job)), digest

    def _need_packer(self) -> "Packer":
        """Made late: it imports torch, which takes seconds, and the base model must not wait for that."""
        with self._packer_lock:
            if self._base_dir is None:
                raise JobError(ProblemCode.LOADER_BUSY, "the base model is still being fetched")
            if self._packer is None:
                from lorafleet_engine.loader.packer import Packer

                config = self._config
                pool = config.base_names, config.target_modules, config.tensor_parallel
                self._packer = Packer(self._base_dir, config.dtype, *pool)
            return self._packer


def _base_key(job: FetchBase) -> str:
    return hashlib.sha256(f"{job.origin.uri}\n{job.digest}".encode()).hexdigest()


def _packed(job: PackAdapter, entry: HostEntry, start: StartTier, **seconds: float) -> Packed:
    return Packed(job.job, entry.facts, entry.blob, entry.chat_template, tuple(seconds.items()), start)


def _check_signature(source: Folder, folder: Path, origin: Origin) -> None:
    """Late: pools without signers need no cryptography."""
    from lorafleet_engine.loader.signatures import SIGNATURE, SIGNATURE_BYTES, check_signature

    source.fetch(SIGNATURE, folder / SIGNATURE, SIGNATURE_BYTES)
    check_signature(folder, origin.signers)


def _is_trusted(folder: Path, origin: Origin) -> bool:
    """Whether files that are here already have the signature that is wanted by now."""
    if not origin.signers:
        return True
    from lorafleet_engine.loader.signatures import is_signed

    return is_signed(folder, origin.signers)


def _check_digest(source: Folder, declared: str, found: str) -> None:
    """Files fetched one after the other can be of two versions; only the declared digest says that they are not."""
    name = source.changed() if declared != found else None
    if name is not None:
        raise JobError(
            ProblemCode.SOURCE_UNREACHABLE, f"{name} changed while the files were read; they are read again at rest"
        )
    _compare(declared, found)


def _compare(declared: str, found: str) -> None:
    if declared and declared != found:
        raise JobError(ProblemCode.DIGEST_MISMATCH, f"the files have digest {found}, declared is {declared}")
