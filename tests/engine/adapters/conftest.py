"""An adapter directory that a test may spoil."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.model.config import read_config
from tests.engine.support.tiny import TinyModel


class Spoilable:
    """A copy of an adapter. Methods change its files and return it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def config(self, **changes: Any) -> "Spoilable":
        path = self.directory / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return self

    def tensors(self, change: Callable[[dict[str, torch.Tensor]], object]) -> "Spoilable":
        path = self.directory / "adapter_model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)
        return self


@pytest.fixture(scope="session")
def shape(tiny: Callable[[str], TinyModel]) -> ModelShape:
    return read_config(tiny("llama").directory).shape


@pytest.fixture
def copy_of(tiny: Callable[[str], TinyModel], tmp_path: Path) -> Callable[[str], Spoilable]:
    def make(kind: str) -> Spoilable:
        shutil.copytree(tiny("llama").adapters[kind], tmp_path / kind)
        return Spoilable(tmp_path / kind)

    return make
