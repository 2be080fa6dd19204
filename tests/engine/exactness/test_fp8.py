"""A base rounded to 8 bits: its memory is what the plan counts, and its answers are near the unrounded base's."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorafleet_contracts.capacity import weight_bytes
from lorafleet_engine.errors import UnsupportedModelError
from lorafleet_engine.layers.weight import Fp8Weight
from lorafleet_engine.messages import AdapterLoaded, Generate, LoopConfig, SamplingParams, StepLimits
from lorafleet_engine.runner import assembly
from tests.engine.support.driver import LoopDriver
from tests.engine.support.tiny import VOCAB, TinyModel

LIMITS = StepLimits(tokens=64, sequences=8)


def start(model: TinyModel, blobs: Path, quantization: str) -> LoopDriver:
    settings = LoopConfig(
        str(model.directory),
        quantization="fp8" if quantization == "fp8" else "none",
        max_model_len=64,
        memory_bytes=64 << 20,
        limits=LIMITS,
    )
    return LoopDriver.start(settings, blobs)


def test_near_the_unrounded_base(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    """The first token's log-probabilities, with and without an adapter: near, and not the same."""
    model = tiny("qwen2")
    drivers = {form: start(model, tmp_path / form, form) for form in ("none", "fp8")}
    sampling = SamplingParams(1, temperature=0, logprobs=100)
    prompt = tuple(torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(5)).tolist())
    for driver in drivers.values():
        assert isinstance(driver.load("a", model.adapters["odd-r5"]), AdapterLoaded)
    for adapter in (None, "a"):
        found = {}
        for form, driver in drivers.items():
            answer = driver.run([Generate("r", adapter, prompt, sampling)])["r"]
            found[form] = dict(answer.news[-1].tokens[0].top)  # type: ignore[union-attr]
        both = sorted(found["none"].keys() & found["fp8"].keys())
        assert len(both) > 60
        differences = [abs(found["none"][token] - found["fp8"][token]) for token in both]
        assert 1e-4 < max(differences) < 1.5


def test_adapters_are_computed_with_unrounded_inputs(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    """Where the base's projections are zero, all that comes out of them is the adapter's: rounded or not, the same."""
    model = tiny("llama")
    hollow = TinyModel(tmp_path / "hollow", model.adapters)
    shutil.copytree(model.directory, hollow.directory)
    tensors = load_file(hollow.directory / "model.safetensors")
    save_file(
        {name: torch.zeros_like(tensor) if "_proj" in name else tensor for name, tensor in tensors.items()},
        hollow.directory / "model.safetensors",
        {"format": "pt"},
    )
    sampling, found = SamplingParams(4, temperature=0, logprobs=20), {}
    for form in ("none", "fp8"):
        driver = start(hollow, tmp_path / form, form)
        assert isinstance(driver.load("a", model.adapters["all-r8"]), AdapterLoaded)
        for adapter in ("a", None):
            answer = driver.run([Generate("r", adapter, (5, 9, 200), sampling)])["r"]
            found[form, adapter] = [token.logprob for news in answer.news for token in news.tokens]
    assert found["fp8", "a"] == pytest.approx(found["none", "a"], abs=1e-5)
    assert found["none", "a"] != pytest.approx(found["none", None], abs=1e-2)


def test_planned_weights(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    core = start(tiny("llama"), tmp_path, "fp8").core
    assert core.plan.budget.weights == weight_bytes(core.config.shape, 4, fp8=True)
    rows = [
        group.weight.rows
        for layer in core.runner.decoder.layers
        for group in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down)
        if isinstance(group.weight, Fp8Weight)
    ]
    assert len(rows) == 4 * core.config.shape.layers
    dense = weight_bytes(core.config.shape, 4) - core.plan.budget.weights
    assert sum(3 * each.data.numel() - 4 * each.scales.numel() for each in rows) == dense


def test_refused_where_the_device_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(UnsupportedModelError, match=r"A100 has 8\.0"):
        assembly.check_fp8(torch.device("cuda"), torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assembly.check_fp8(torch.device("cuda"), torch.bfloat16)
    with pytest.raises(UnsupportedModelError, match="float32"):
        assembly.check_fp8(torch.device("cuda"), torch.float32)
