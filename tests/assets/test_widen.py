"""A widened adapter changes a model exactly as the one that it was made from."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from e2e.assets.widen import CONFIG, WEIGHTS, widen


def test_the_products_and_the_scale_are_those_of_the_source(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "wide"
    source.mkdir()
    (source / CONFIG).write_text(json.dumps({"r": 4, "lora_alpha": 8, "peft_type": "LORA"}))
    pair = {"x.lora_A.weight": torch.randn(4, 6), "x.lora_B.weight": torch.randn(5, 4)}
    save_file(pair, source / WEIGHTS, metadata={"format": "pt"})
    widen(source, target, 16)
    wide, config = load_file(target / WEIGHTS), json.loads((target / CONFIG).read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (16, 32, "LORA")
    assert {name: tuple(each.shape) for name, each in wide.items()} == {
        "x.lora_A.weight": (16, 6),
        "x.lora_B.weight": (5, 16),
    }
    expected = pair["x.lora_B.weight"] @ pair["x.lora_A.weight"]
    torch.testing.assert_close(wide["x.lora_B.weight"] @ wide["x.lora_A.weight"], expected)
