"""Many copies from pinned memory to the device in one call, which torch does not offer. Called by copier.py.

One call for sixteen pages takes a tenth of the time of sixteen torch copies, all of it without the interpreter's lock,
and the copies need no multiprocessor.
"""

import ctypes
from collections.abc import Sequence

import torch

STREAM_ORDER = 1
"""cudaMemcpySrcAccessOrderStream: the source is read in stream order, so it may be overwritten after a later event."""
OVERLAP_WITH_COMPUTE = 1
"""cudaMemcpyFlagPreferOverlapWithCompute."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("order", ctypes.c_int),
        ("source", _Location),
        ("target", _Location),
        ("flags", ctypes.c_uint),
    )


class BatchCopy:
    """cudaMemcpyBatchAsync of the CUDA 13 runtime that torch has loaded."""

    def __init__(self) -> None:
        major = (torch.version.cuda or "").split(".")[0]
        self._call = ctypes.CDLL(f"libcudart.so.{major}").cudaMemcpyBatchAsync
        self._call.restype = ctypes.c_int
        self._attributes = _Attributes(order=STREAM_ORDER, flags=OVERLAP_WITH_COMPUTE)
        self._first = (ctypes.c_size_t * 1)(0)

    def __call__(
        self, targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int], stream: torch.cuda.Stream
    ) -> None:
        """Copy sizes[i] bytes from pinned address sources[i] to device address targets[i]. Raises RuntimeError."""
        numbers = ctypes.c_size_t * len(sizes)
        status = self._call(
            numbers(*targets),
            numbers(*sources),
            numbers(*sizes),
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(self._attributes),
            self._first,
            ctypes.c_size_t(1),
            ctypes.c_void_p(stream.cuda_stream),
        )
        if status:
            raise RuntimeError(f"cudaMemcpyBatchAsync failed with error {status}")
