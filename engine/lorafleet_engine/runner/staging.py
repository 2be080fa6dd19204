"""Host memory that steps are packed into and sampled tokens come back to. Used by runner.py and sampler.py.

Buffers are used by turns, so that the next step can be packed while the device still reads the last one.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from lorafleet_engine.kernels.pinned import fetch

TURNS = 2


class Staging:
    """Pinned buffers of int32 (on a CPU engine: one plain array) from which one copy a step goes to the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        turns = TURNS if self._on_cuda else 1
        self._buffers = [torch.zeros(size, dtype=torch.int32, pin_memory=self._on_cuda) for _ in range(turns)]
        self._copied: list[torch.cuda.Event | None] = [None] * turns
        self._turn = 0

    def ints(self) -> npt.NDArray[np.int32]:
        """The buffer whose turn it is, free to be written: waits for its last copy, two steps ago."""
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        return self._buffers[self._turn].numpy()

    def send(self, target: torch.Tensor) -> None:
        """Copy the beginning of the buffer to `target` behind what the device has to do, and take the next turn."""
        fetch(self._buffers[self._turn][: target.shape[0]], target)
        if self._on_cuda:
            self._copied[self._turn] = _record()
        self._turn = (self._turn + 1) % len(self._buffers)


def upload(values: Sequence[object] | npt.NDArray[np.int64], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`values` on the device, without waiting for it."""
    here = torch.tensor(values, dtype=dtype)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here


class Returning:
    """Tensors on their way to the host."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if not tensors[0].is_cuda:
            self._here = tuple(tensor.clone() for tensor in tensors)
        else:
            self._here = tuple(
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
                for tensor in tensors
            )
            self._event = _record()

    @property
    def ended(self) -> bool:
        """Whether they are here."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> tuple[torch.Tensor, ...]:
        """The tensors, once they are here."""
        if self._event is not None:
            self._event.synchronize()
        return self._here


def _record() -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
