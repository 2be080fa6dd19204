"""Where the decoder's tensors come from: published safetensors files, one or sharded with an index.

Used by runner/ when it builds a decoder. Pickled weights are never opened.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from lorafleet_engine.errors import BrokenModelError


class WeightSource(Protocol):
    """Gives tensors by their published names."""

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor `name`, which must have `shape`. Raises BrokenModelError."""
        ...


class SafetensorsSource:
    """The weights of a model directory, cast to `dtype` on `device`. A context manager: files stay mapped inside."""

    def __init__(self, model_dir: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._dir = model_dir
        self._device = device
        self._dtype = dtype
        self._files: dict[str, Any] = {}
        self._where: dict[str, str] = {}

    def __enter__(self) -> Self:
        index = self._dir / "model.safetensors.index.json"
        try:
            if index.exists():
                self._where = dict(json.loads(index.read_text())["weight_map"])
                names = sorted(set(self._where.values()))
            else:
                names = ["model.safetensors"]
            for name in names:
                self._files[name] = safe_open(self._inside(name), framework="pt", device="cpu")
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise BrokenModelError([f"the weights cannot be opened: {type(error).__name__}: {error}"]) from error
        if not self._where:
            self._where = dict.fromkeys(self._files[names[0]].keys(), names[0])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See WeightSource."""
        if name not in self._where:
            raise BrokenModelError([f"the weights have no tensor {name}"])
        try:
            tensor: torch.Tensor = self._files[self._where[name]].get_tensor(name)
        except SafetensorError as error:
            raise BrokenModelError([f"tensor {name} cannot be read: {error}"]) from error
        if tuple(tensor.shape) != shape:
            raise BrokenModelError([f"tensor {name} has shape {tuple(tensor.shape)}, the config says {shape}"])
        return tensor.to(device=self._device, dtype=self._dtype)

    def _inside(self, name: str) -> str:
        """An index may only name files beside itself."""
        if Path(name).name != name:
            raise ValueError(f"shard name {name!r} leaves the model's directory")
        return str(self._dir / name)
