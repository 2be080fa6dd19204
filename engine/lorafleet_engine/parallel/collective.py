"""Sums and copies between the devices of a tensor-parallel engine: NCCL on CUDA, gloo on CPUs. Used by this room only.

Every process must start the same collectives in the same order. On CUDA they are queued on the current stream, also
while a graph is captured; a peer that never comes is noticed by gang.py, not here.
"""

import datetime
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from lorafleet_engine.errors import PeerLostError
from lorafleet_engine.model.shards import Shard

PATIENCE = datetime.timedelta(seconds=600)
"""How long a process waits for the others to come to a collective: one may be slower to start."""
LOOPBACK = "127.0.0.1"


class Collective:
    """One process's part. Not torch.distributed's default group, so that a process may have one after another."""

    def __init__(self, shard: Shard, meeting: str, device: torch.device) -> None:
        """Wait for the others, who name the same file. Raises PeerLostError."""
        self._device = device
        self._size = shard.size
        self._group: Any = None
        # The end of this store removes the file, and waits for minutes if the file's folder is gone. It counts one
        # process, because followers leave without ending theirs.
        store = FileStore(meeting, 1)
        try:
            self._group = _make_group(shard, store, device)
            self.add_up(torch.zeros(1, device=device))
        except RuntimeError as error:
            raise PeerLostError(f"the processes do not meet: {error}") from error

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace a contiguous tensor by its sum over all processes: the same bits in each of them."""
        try:
            self._group.allreduce([tensor]).wait()
        except RuntimeError as error:
            raise PeerLostError(str(error)) from error

    def share(self, tensor: torch.Tensor) -> None:
        """Replace a contiguous tensor by rank 0's."""
        try:
            self._group.broadcast([tensor], dist.BroadcastOptions()).wait()  # its root is 0
        except RuntimeError as error:
            raise PeerLostError(str(error)) from error

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Everybody's contiguous tensors, all of one size, by rank."""
        found = [torch.empty_like(tensor) for _ in range(self._size)]
        try:
            self._group.allgather([found], [tensor]).wait()
        except RuntimeError as error:
            raise PeerLostError(str(error)) from error
        return found

    def close(self) -> None:
        """Leave; nothing waits for peers that are gone."""
        if self._device.type == "cuda":
            self._group.abort()


def _make_group(shard: Shard, store: FileStore, device: torch.device) -> Any:
    """The two kinds have the same methods, but no common type that says so."""
    if device.type == "cuda":
        settings = dist.ProcessGroupNCCL.Options()
        settings._timeout = PATIENCE
        return dist.ProcessGroupNCCL(store, shard.rank, shard.size, settings)
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = PATIENCE
    return gloo(store, shard.rank, shard.size, options)
