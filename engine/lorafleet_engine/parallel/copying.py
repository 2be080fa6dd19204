"""A packed version's share into a device's pool: cut out on a thread, then copied as runner/copier.py does it; and all
shares of a version back in one place.

Used by gang.py and follower.py; a packed file holds the version for the whole model.
"""

import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import torch

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.model.merged import LayerMatrices
from lorafleet_engine.model.shards import Shard, join_matrices, shard_adapter
from lorafleet_engine.parallel.collective import Collective
from lorafleet_engine.runner.copier import Arrival, Copier, make_copier
from lorafleet_engine.runner.pool import DTYPES, DevicePool


@dataclass(frozen=True, slots=True)
class _Cut:
    """A share being cut out; `done` gives the open file that holds it, and its length."""

    resident: Resident
    blob: BlobRef
    done: "Future[tuple[int, int]]"


class ShardCopier:
    """A Copier for one share. On a CPU all is done within submit, as DirectCopier does it."""

    def __init__(self, pool: DevicePool, whole: ModelShape, shard: Shard) -> None:
        self._inner: Copier = make_copier(pool)
        self._whole = whole
        self._shard = shard
        self._threads = ThreadPoolExecutor(1, "shard") if pool.memory.device.type == "cuda" else None
        self._cuts: deque[_Cut] = deque()
        self._failed: list[Arrival] = []

    @property
    def busy(self) -> bool:
        """See Copier."""
        return bool(self._cuts or self._failed) or self._inner.busy

    def submit(self, resident: Resident, blob: BlobRef, file: int) -> None:
        """See Copier."""
        work = partial(self._cut, blob, file)
        if self._threads is not None:
            self._cuts.append(_Cut(resident, blob, self._threads.submit(work)))
            return
        done: Future[tuple[int, int]] = Future()
        try:
            done.set_result(work())
        except OSError as error:
            done.set_exception(error)
        self._pass_on(_Cut(resident, blob, done))

    def poll(self) -> list[Arrival]:
        """See Copier."""
        while self._cuts and self._cuts[0].done.done():
            self._pass_on(self._cuts.popleft())
        failed, self._failed = self._failed, []
        return [*failed, *self._inner.poll()]

    def _pass_on(self, cut: _Cut) -> None:
        problem = cut.done.exception()
        if problem is not None:
            self._failed.append(Arrival(cut.resident, f"{type(problem).__name__}: {problem}"))
            return
        file, size = cut.done.result()
        self._inner.submit(cut.resident, replace(cut.blob, bytes=size), file)

    def _cut(self, blob: BlobRef, file: int) -> tuple[int, int]:
        """Put the share into a file in memory, and close the whole one."""
        try:
            with mmap.mmap(file, blob.bytes, access=mmap.ACCESS_COPY) as mapped:
                whole = torch.frombuffer(mapped, dtype=DTYPES[blob.dtype])
                own = shard_adapter(whole, blob.module_ranks, self._whole, self._shard)
                del whole
        finally:
            os.close(file)
        data = memoryview(own.view(torch.uint8).numpy().data)
        target = os.memfd_create("shard", os.MFD_CLOEXEC)
        try:
            written = 0
            while written < len(data):
                written += os.write(target, data[written:])
        except OSError:
            os.close(target)
            raise
        return target, len(data)


def borrow(collective: Collective, own: LayerMatrices) -> LayerMatrices:
    """The whole matrices of a version in one layer, of everybody's shares. All call this at the same time."""
    parts = [part for pair in own.values() for part in pair]
    flat = torch.cat([part.reshape(-1) for part in parts])
    shares = []
    for given in collective.gather(flat):
        pieces = [
            piece.view_as(part)
            for piece, part in zip(torch.split(given, [part.numel() for part in parts]), parts, strict=True)
        ]
        shares.append(dict(zip(own, zip(pieces[::2], pieces[1::2], strict=True), strict=True)))
    return join_matrices(shares)
