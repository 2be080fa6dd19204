"""Adapters that must be refused, each for one reason, made from a good one.

Called by build.py. The e2e tests apply them and look at the verdicts; the demo never does.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def break_adapter(good: Path, target: Path) -> None:
    """Write the folders wrong-rank, wrong-base, wrong-shape, pickle and truncated below `target`."""
    _edited(good, target / "wrong-rank", r=32)
    _edited(good, target / "wrong-base", base_model_name_or_path="llama-9000b")
    pickled = _edited(good, target / "pickle")
    torch.save(load_file(pickled / WEIGHTS), pickled / "adapter_model.bin")
    (pickled / WEIGHTS).unlink()
    cut = _edited(good, target / "truncated") / WEIGHTS
    cut.write_bytes(cut.read_bytes()[:-1000])
    other = _edited(good, target / "wrong-shape") / WEIGHTS
    save_file({name: tensor[..., :-8].contiguous() for name, tensor in load_file(other).items()}, other)


def _edited(good: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(good, target)
    config = json.loads((target / CONFIG).read_text())
    (target / CONFIG).write_text(json.dumps(config | changes, indent=2))
    return target
