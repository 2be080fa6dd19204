"""Kernels are tested on a CUDA device, and small cases anywhere by triton's interpreter (see test_interpreted.py)."""

import os
from typing import Any

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if INTERPRETED:
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_for_numpy(tensor: Any, *scope: Any) -> None:
        """numpy 2.4 no longer makes an int of an array of one element, which triton 3.6 needs for loop bounds."""
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor_for_numpy


@pytest.fixture
def device() -> torch.device:
    """CUDA, or the CPU where triton interprets."""
    if INTERPRETED:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    pytest.skip("needs a CUDA device")
