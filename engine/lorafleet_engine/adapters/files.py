"""The weight files of an adapter: safetensors, one or sharded. Used by peft.py, pack.py; pickles are never opened."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from lorafleet_engine.errors import BrokenAdapterError, UnsupportedAdapterError

WEIGHTS = "adapter_model.safetensors"
INDEX = "adapter_model.safetensors.index.json"
PICKLE = "adapter_model.bin"
MAX_TENSORS = 100_000


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The tensors of one adapter: where each lies and what its header says."""

    directory: Path
    files: dict[str, str]
    shapes: dict[str, tuple[int, ...]]

    def read(self, names: list[str]) -> dict[str, torch.Tensor]:
        """Load some tensors. Raises BrokenAdapterError for damaged data."""
        found: dict[str, torch.Tensor] = {}
        try:
            for file in sorted({self.files[name] for name in names}):
                with safe_open(self.directory / file, framework="pt", device="cpu") as opened:
                    found.update({name: opened.get_tensor(name) for name in names if self.files[name] == file})
        except (OSError, SafetensorError) as error:
            raise BrokenAdapterError([f"the weights cannot be read: {error}"]) from error
        return found


def open_weights(adapter_dir: Path) -> TensorFile:
    """Read the headers. Raises UnsupportedAdapterError for pickled weights, BrokenAdapterError for all else."""
    index, single = adapter_dir / INDEX, adapter_dir / WEIGHTS
    if not index.exists() and not single.exists() and (adapter_dir / PICKLE).exists():
        raise UnsupportedAdapterError([f"{PICKLE} is a pickle and is never opened: save the adapter as safetensors"])
    try:
        names = _shards(index) if index.exists() else [WEIGHTS]
        files: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for name in names:
            with safe_open(adapter_dir / name, framework="pt", device="cpu") as opened:
                for tensor in opened.keys():  # noqa: SIM118  (the handle is no mapping)
                    files[tensor] = name
                    shapes[tensor] = tuple(opened.get_slice(tensor).get_shape())
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BrokenAdapterError([f"the weights cannot be opened: {type(error).__name__}: {error}"]) from error
    if len(files) > MAX_TENSORS:
        raise BrokenAdapterError([f"{len(files)} tensors are more than {MAX_TENSORS}"])
    return TensorFile(adapter_dir, files, shapes)


def _shards(index: Path) -> list[str]:
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(f"shard {name!r} is no safetensors file beside the index")
    return names
