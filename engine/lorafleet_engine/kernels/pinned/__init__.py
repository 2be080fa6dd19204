"""A step's packed ints from pinned host memory: the op as runner/staging.py calls it."""

import torch

from lorafleet_engine.kernels.pinned import reference


def fetch(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy source [n] int32, in host memory (pinned where `target` is on a CUDA device), to target [n].

    On CUDA a kernel reads it: a copy by the device's copy engines would queue behind those of adapters being loaded.
    """
    if target.is_cuda:
        from lorafleet_engine.kernels.pinned import kernel

        kernel.fetch(source, target)
    else:
        reference.fetch(source, target)
