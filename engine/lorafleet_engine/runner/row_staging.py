"""A version's rows into the row table through memory of one's own. Used by copier.py, one for each reader.

Whatever is not pinned is copied by the driver with a lock held, behind the steps that the stream waits for, and what is
allocated meanwhile may wait for the device: either would hold up the loop.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.runner.pool import DevicePool

ROWS = 64
"""Rows of rank that are entered as one."""


class RowStaging:
    """Pinned and device buffers for ROWS rows of rank; all is done on `stream`."""

    def __init__(self, pool: DevicePool, stream: torch.cuda.Stream) -> None:
        device, columns = pool.row_table.device, pool.row_table.shape[0]
        self._stream = stream
        self._granules = _Pair((columns * ROWS,), torch.int32, device)
        self._rows = _Pair((ROWS,), torch.int64, device)
        self._used: torch.cuda.Event | None = None

    def enter(self, pool: DevicePool, resident: Resident, module_ranks: Sequence[Sequence[int]]) -> None:
        """What DevicePool.enter_rows does, without waiting for the device unless it enters more than ROWS rows."""
        granules = pool.row_granules(resident, module_ranks)
        rows = np.asarray(resident.rows, dtype=np.int64)
        with torch.cuda.stream(self._stream):
            for start in range(0, len(rows), ROWS):
                if self._used is not None:
                    self._used.synchronize()
                here = slice(start, start + ROWS)
                pool.row_table.index_copy_(1, self._rows.send(rows[here]), self._granules.send(granules[:, here]))
                self._used = self._stream.record_event(torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]


class _Pair:
    """A pinned buffer and one of its size on the device."""

    def __init__(self, shape: tuple[int], dtype: torch.dtype, device: torch.device) -> None:
        self._host = torch.empty(shape, dtype=dtype, pin_memory=True)
        self._there = torch.empty(shape, dtype=dtype, device=device)

    def send(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        """The values on the device, in the order of the current stream."""
        here, there = (each[: values.size].view(values.shape) for each in (self._host, self._there))
        np.copyto(here.numpy(), values)
        return there.copy_(here, non_blocking=True)
