"""The workload's adapters as packed files, each with bytes of its own and its digest. Used by bench/bench.py.

Number k has rank RANKS[k % 4], as for the rivals, and weights drawn from seed k.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.bench.engine import RandomSource, packed, random_adapter
from lorafleet_engine.bench.options import DType
from lorafleet_engine.bench.workload import RANKS
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.model.config import ModelConfig

WRITERS = 8
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
            for start in range(0, len(missing), WRITERS):
                part = missing[start : start + WRITERS]
                for blob in pool.map(lambda write: write(), [self._writer(number) for number in part]):
                    self._known[blob.number] = blob
        check_distinct([self._known[number] for number in sorted(set(numbers))])
        return [self._known[number] for number in numbers]

    def numbers(self, count: int, kind: str, total: int) -> list[int]:
        """The first `count` adapters of a rank ("16", "64") or of all ranks in turn ("mixed")."""
        fitting = [number for number in range(total) if kind == "mixed" or str(RANKS[number % len(RANKS)]) == kind]
        return fitting[:count]

    def _writer(self, number: int) -> Callable[[], Blob]:
        """Draw an adapter on the device; the returned call writes and hashes it, or hashes the file that is there."""
        rank = RANKS[number % len(RANKS)]
        path = self._folder / f"{number:04d}-r{rank}-{DTYPE_NAMES[self._source.dtype]}.blob"
        if path.exists():
            return lambda: self._blob(number, rank, path)
        data = packed(random_adapter(self._config, self._source, number, rank)).cpu().view(torch.uint8).numpy()

        def write() -> Blob:
            half = path.with_suffix(".half")
            data.tofile(half)
            half.rename(path)
            return self._blob(number, rank, path)

        return write

    def _blob(self, number: int, rank: int, path: Path) -> Blob:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        ranks = tuple((rank,) * len(PROJECTIONS) for _ in range(self._config.shape.layers))
        ref = BlobRef(str(path), path.stat().st_size, DTYPE_NAMES[self._source.dtype], rank, ranks)
        return Blob(number, rank, ref, digest)


def check_distinct(blobs: Sequence[Blob]) -> None:
    """As many digests as adapters. Raises SharedBytesError."""
    digests = {blob.digest for blob in blobs}
    if len(digests) != len(blobs):
        raise SharedBytesError(f"{len(blobs)} adapters have only {len(digests)} different contents")
