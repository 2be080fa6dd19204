"""The workload's adapters as packed files, each with bytes of its own and its digest. Used by bench/bench.py.

Number k has rank RANKS[k % 4], as for the rivals, and weights drawn from seed k.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import torch

from lorafleet_contracts.capacity import PROJECTIONS, rank_unit_parameters
from lorafleet_engine.bench.engine import RandomSource, packed, random_adapter
from lorafleet_engine.bench.options import DType
from lorafleet_engine.bench.workload import RANKS
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.model.config import ModelConfig

WRITERS = 12
DTYPE_NAMES: dict[torch.dtype, DType] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class SharedBytesError(Exception):
    """Two adapters of a run have the same bytes, or the device holds fewer than all of them take."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One adapter of the catalogue, packed; `ref` is what the loop is told."""

    number: int
    rank: int
    ref: BlobRef
    digest: str

    @property
    def key(self) -> str:
        """The version's name in the loop."""
        return f"a{self.number:04d}@{self.digest}"


class Catalogue:
    """Writes packed adapters under `folder` (in memory) when they are first asked for."""

    def __init__(self, config: ModelConfig, source: RandomSource, folder: Path) -> None:
        self._config = config
        self._source = source
        self._folder = folder
        self._known: dict[int, Blob] = {}

    def take(self, numbers: Sequence[int]) -> list[Blob]:
        """The adapters of these numbers, in order. Raises SharedBytesError when two have the same bytes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        missing = sorted(set(numbers) - self._known.keys())
        with ThreadPoolExecutor(WRITERS) as pool:
            for blob in [started.result() for started in self._start(pool, missing)]:
                self._known[blob.number] = blob
        check_distinct([self._known[number] for number in sorted(set(numbers))])
        return [self._known[number] for number in numbers]

    def numbers(self, count: int, kind: str, total: int) -> list[int]:
        """The first `count` adapters of a rank ("16", "64") or of all ranks in turn ("mixed")."""
        fitting = [number for number in range(total) if kind == "mixed" or str(RANKS[number % len(RANKS)]) == kind]
        return fitting[:count]

    def _start(self, pool: ThreadPoolExecutor, numbers: Sequence[int]) -> Iterator[Future[Blob]]:
        """Draw adapters on the device one after another; threads write and hash them, or hash the files that are there.

        So many are on their way at a time as there are buffers.
        """
        buffers: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        for _ in range(WRITERS):
            buffers.put(None)
        for number in numbers:
            rank = RANKS[number % len(RANKS)]
            path = self._folder / f"{number:04d}-r{rank}-{DTYPE_NAMES[self._source.dtype]}.blob"
            if path.exists():
                yield pool.submit(self._hash, number, path)
                continue
            data = packed(random_adapter(self._config, self._source, number, rank)).view(torch.uint8)
            buffer = buffers.get()
            if buffer is None:
                buffer = self._buffer(len(data))
            buffer[: len(data)].copy_(data)
            yield pool.submit(self._write, number, path, buffer[: len(data)], partial(buffers.put, buffer))

    def _buffer(self, least: int) -> torch.Tensor:
        """Room for any adapter, at least for one of `least` bytes, that the device copies to at full speed."""
        size = max(least, max(RANKS) * rank_unit_parameters(self._config.shape) * self._source.dtype.itemsize)
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._source.device.type == "cuda")

    def _write(self, number: int, path: Path, data: torch.Tensor, done: Callable[[], None]) -> Blob:
        view, half = data.numpy().data, path.with_suffix(".half")
        try:
            with half.open("wb", buffering=0) as file:
                written = 0
                while written < len(view):
                    written += file.write(view[written:])
            half.rename(path)
            return self._blob(number, path, hashlib.sha256(view).hexdigest())
        finally:
            done()

    def _hash(self, number: int, path: Path) -> Blob:
        with path.open("rb") as file:
            return self._blob(number, path, hashlib.file_digest(file, "sha256").hexdigest())

    def _blob(self, number: int, path: Path, digest: str) -> Blob:
        rank = RANKS[number % len(RANKS)]
        ranks = tuple((rank,) * len(PROJECTIONS) for _ in range(self._config.shape.layers))
        ref = BlobRef(str(path), path.stat().st_size, DTYPE_NAMES[self._source.dtype], rank, ranks)
        return Blob(number, rank, ref, digest)


def check_distinct(blobs: Sequence[Blob]) -> None:
    """As many digests as adapters. Raises SharedBytesError."""
    digests = {blob.digest for blob in blobs}
    if len(digests) != len(blobs):
        raise SharedBytesError(f"{len(blobs)} adapters have only {len(digests)} different contents")
