"""The weight files of an adapter: safetensors, one or sharded. Used by peft.py, pack.py; pickles are never opened."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lorafleet_contracts.digest import ADAPTER_INDEX, ADAPTER_WEIGHTS, IncompleteFolderError, weight_files
from lorafleet_engine.adapters.jsonfiles import parse_object
from lorafleet_engine.errors import BrokenAdapterError, UnsupportedAdapterError

PICKLE = "adapter_model.bin"
MAX_TENSORS = 100_000
MAX_HEADER_BYTES = 16 << 20
LENGTH_BYTES = 8
DTYPES = ("F32", "F16", "BF16")
"""What the engine computes with; every other type is refused."""


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The tensors of one adapter: where each lies and what its header says."""

    directory: Path
    files: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

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
    index, single = adapter_dir / ADAPTER_INDEX, adapter_dir / ADAPTER_WEIGHTS
    if not index.exists() and not single.exists() and (adapter_dir / PICKLE).exists():
        raise UnsupportedAdapterError([f"{PICKLE} is a pickle and is never opened: save the adapter as safetensors"])
    names = [ADAPTER_WEIGHTS]
    try:
        if not single.exists() and index.exists():  # in this order, as the digest and the fetching have it
            names = weight_files(index.read_bytes())
    except (OSError, IncompleteFolderError) as error:
        raise BrokenAdapterError([f"the weights cannot be opened: {error}"]) from error
    found = TensorFile(adapter_dir, {}, {}, {})
    for name in names:
        _add_header(found, name)
    return found


def _add_header(found: TensorFile, name: str) -> None:
    """Add one file's tensors. Whatever its header says of offsets, shapes and types is checked by safetensors."""
    path = found.directory / name
    try:
        header = _read_header(path)
        with safe_open(path, framework="pt", device="cpu"):
            header.pop("__metadata__", None)
        for tensor, entry in header.items():
            if tensor in found.files:
                raise ValueError(f"tensor {tensor!r} is in {found.files[tensor]} too")
            found.files[tensor] = name
            found.shapes[tensor] = tuple(entry["shape"])
            found.dtypes[tensor] = entry["dtype"]
    except (OSError, ValueError, SafetensorError) as error:
        raise BrokenAdapterError([f"the weights cannot be opened: {name}: {error}; upload them anew"]) from error


def _read_header(path: Path) -> dict[str, Any]:
    """The header, unless it is what safetensors takes and we do not: of many megabytes, or with two meanings."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        if size > MAX_HEADER_BYTES:
            raise ValueError(f"the header would take {size} bytes, {MAX_HEADER_BYTES} are allowed")
        text = stream.read(size)
    if len(text) < size:
        raise ValueError(f"the file ends within its header of {size} bytes")
    header = parse_object(text)
    if len(header) > MAX_TENSORS:
        raise ValueError(f"{len(header)} tensors are more than {MAX_TENSORS}")
    return header
