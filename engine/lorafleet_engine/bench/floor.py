"""The least time that a decode step can take: the bytes that it must read over the memory bandwidth of the device.

Used by bench/bench.py and the parts.
"""

import time
from dataclasses import dataclass

import torch

from lorafleet_contracts.capacity import (
    ModelShape,
    kv_bytes_per_token,
    rank_unit_parameters,
    weight_parameters,
)

COPIES = 10


@dataclass(frozen=True, slots=True)
class Floor:
    """Milliseconds by what is read: the weights (without the embedding table, of which a step reads single rows), each
    distinct adapter of the step once, and keys and values of the context."""

    weights_ms: float
    adapters_ms: float
    kv_ms: float

    def fields(self) -> dict[str, float]:
        """As a record has it: `floor_ms` leaves the context out, as the rivals' table does."""
        return {
            "floor_ms": round(self.weights_ms + self.adapters_ms, 4),
            "floor_with_kv_ms": round(self.weights_ms + self.adapters_ms + self.kv_ms, 4),
        }


@dataclass(frozen=True, slots=True)
class FloorModel:
    """Bytes of one model over `bandwidth` bytes a second."""

    shape: ModelShape
    dtype_bytes: int
    bandwidth: float

    @property
    def rank_unit_bytes(self) -> int:
        """Bytes that one unit of rank takes over all layers and projections."""
        return rank_unit_parameters(self.shape) * self.dtype_bytes

    def of(self, rank_sum: int, context_tokens: int) -> Floor:
        """The floor of a step whose distinct adapters' ranks sum to `rank_sum`, over so many tokens of context."""
        table = 0 if self.shape.tied_embeddings else self.shape.vocab * self.shape.hidden
        weights = (weight_parameters(self.shape) - table) * self.dtype_bytes
        kv = context_tokens * kv_bytes_per_token(self.shape, self.dtype_bytes)
        return Floor(self._ms(weights), self._ms(rank_sum * self.rank_unit_bytes), self._ms(kv))

    def _ms(self, size: int) -> float:
        return size / self.bandwidth * 1e3


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written ones both counted, of the best of several large copies within the device."""
    size = (4 << 30) if device.type == "cuda" else (16 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(COPIES):
        _wait(device)
        started = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return 2 * size / min(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
