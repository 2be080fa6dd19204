"""Small base models with their adapters, made once a run."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.engine.support.tiny import TinyModel


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], "TinyModel"]:
    """Give the small model of a family ("llama" or "qwen2") and one adapter of every kind."""
    # Late: it needs transformers and peft, which a machine that only runs the tests on a GPU may lack.
    from tests.engine.support.tiny import make_tiny

    torch.set_num_threads(1)
    made: dict[str, TinyModel] = {}

    def get(family: str) -> "TinyModel":
        if family not in made:
            root: Path = tmp_path_factory.mktemp(family)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # peft's, about rsLoRA with patterns and about module names
                made[family] = make_tiny(root, family)
        return made[family]

    return get
