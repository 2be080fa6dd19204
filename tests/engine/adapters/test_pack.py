"""The packed form: blob order, scale in B, true ranks, finite numbers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lorafleet_contracts.capacity import PROJECTIONS, ModelShape
from lorafleet_engine.adapters.pack import check_values, pack_adapter
from lorafleet_engine.adapters.peft import inspect_adapter, module_path
from lorafleet_engine.errors import BrokenAdapterError
from tests.engine.adapters.conftest import Spoilable
from tests.engine.support.tiny import TinyModel


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layout_and_scale(tiny: Callable[[str], TinyModel], shape: ModelShape, dtype: str) -> None:
    directory = tiny("llama").adapters["rslora"]
    packed = pack_adapter(directory, shape, dtype)  # type: ignore[arg-type]
    tensors = load_file(directory / "adapter_model.safetensors")
    kind, scale = getattr(torch, dtype), 8 / 16**0.5
    at = 0
    for layer in range(shape.layers):
        for module in PROJECTIONS:
            name = f"base_model.model.{module_path(layer, module)}"
            down, up = tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
            for expected in (down.to(kind), (up * scale).t().to(kind)):
                found = packed.data[at : at + expected.numel()].view(expected.shape)
                assert torch.equal(found, expected)
                at += expected.numel()
    assert at == packed.data.numel()
    assert packed.module_ranks == ((16,) * 7,) * shape.layers
    assert (packed.rank, packed.dtype) == (16, dtype)
    assert packed.bytes == inspect_adapter(directory, shape, kind.itemsize).bytes


def test_written_file_holds_the_bytes(tiny: Callable[[str], TinyModel], shape: ModelShape, tmp_path: Path) -> None:
    packed = pack_adapter(tiny("llama").adapters["patterns"], shape, "bfloat16")
    blob = packed.write(tmp_path / "blob")
    assert Path(blob.path).stat().st_size == blob.bytes == packed.bytes
    assert torch.equal(torch.from_file(blob.path, size=blob.bytes // 2, dtype=torch.bfloat16), packed.data)
    assert blob.module_ranks[1] == (3, 8, 8, 8, 8, 8, 24)


def test_zeros_are_a_warning(copy_of: Callable[[str], Spoilable], shape: ModelShape) -> None:
    adapter = copy_of("all-r8").tensors(lambda t: [t[name].zero_() for name in t if "k_proj.lora_B" in name])
    assert check_values(adapter.directory, shape, "float32") == (
        "3 of 21 modules have a B of zeros and change nothing",
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [(float("nan"), r"1 of \d+ values that are not finite \(NaN\)"), (float("inf"), "infinite"), (3e38, "too large")],
)
@pytest.mark.parametrize("side", ["A", "B"])
def test_numbers_must_be_finite(
    copy_of: Callable[[str], Spoilable], shape: ModelShape, side: str, value: float, words: str
) -> None:
    name = f"base_model.model.model.layers.1.mlp.up_proj.lora_{side}.weight"
    adapter = copy_of("all-r8").tensors(lambda t: t[name].view(-1)[5].fill_(value))
    if (side, value) == ("A", 3e38):
        assert pack_adapter(adapter.directory, shape, "float32").rank == 8, "it is a number, and not scaled"
        return
    for read in (pack_adapter, check_values):
        with pytest.raises(BrokenAdapterError, match=rf"{name} has .*{words}"):
            read(adapter.directory, shape, "float32")


def test_integers_are_not_read(copy_of: Callable[[str], Spoilable], shape: ModelShape) -> None:
    def round_all(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(torch.int8)

    with pytest.raises(BrokenAdapterError, match="is I8; only F32, F16, BF16 are read"):
        pack_adapter(copy_of("all-r8").tensors(round_all).directory, shape, "float32")
