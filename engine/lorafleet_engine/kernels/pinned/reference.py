"""What fetching ints means. Called by this op on CPUs, and by its tests."""

import torch


def fetch(source: torch.Tensor, target: torch.Tensor) -> None:
    """See fetch in the package."""
    target.copy_(source)
