"""Hostile weight files: refused in bounded time and memory, with a reason of bounded length, and nothing else."""

import resource
import time
from collections.abc import Callable

import pytest

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.adapters.peft import inspect_adapter
from lorafleet_engine.errors import BrokenAdapterError
from tests.engine.adapters.conftest import Spoilable
from tests.engine.support.hostile import HOSTILE

SECONDS = 2.0
GROWTH_KIB = 200 << 10


@pytest.mark.parametrize("name", HOSTILE)
def test_refused(copy_of: Callable[[str], Spoilable], shape: ModelShape, name: str) -> None:
    directory = copy_of("all-r8").directory
    file = directory / "adapter_model.safetensors"
    file.write_bytes(HOSTILE[name](file.read_bytes()))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    for read in (lambda: inspect_adapter(directory, shape, 4), lambda: pack_adapter(directory, shape, "float32")):
        with pytest.raises(BrokenAdapterError) as caught:
            read()
        assert len(str(caught.value)) < 4_000
        assert str(caught.value).isprintable()
    assert time.thread_time() - began < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB


def test_a_tensor_in_two_shards(copy_of: Callable[[str], Spoilable], shape: ModelShape) -> None:
    directory = copy_of("sharded").directory
    first, second = (directory / f"adapter_model-{number}.safetensors" for number in (1, 2))
    second.write_bytes(first.read_bytes())
    with pytest.raises(BrokenAdapterError, match=r"is in adapter_model-1\.safetensors too"):
        inspect_adapter(directory, shape, 4)


def test_a_missing_shard(copy_of: Callable[[str], Spoilable], shape: ModelShape) -> None:
    directory = copy_of("sharded").directory
    (directory / "adapter_model-2.safetensors").unlink()
    with pytest.raises(BrokenAdapterError, match=r"adapter_model-2\.safetensors"):
        inspect_adapter(directory, shape, 4)


@pytest.mark.parametrize("number", range(6))
def test_a_flipped_byte_of_the_header(copy_of: Callable[[str], Spoilable], shape: ModelShape, number: int) -> None:
    """One bit of a name, a shape, a type or an offset; the values have no redundancy: the digest guards them."""
    directory = copy_of("all-r8").directory
    file = directory / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    places = [data.index(word) for word in (b"layers.0", b"[8,64]", b"F32", b"data_offsets", b"lora_A", b'":{')]
    data[places[number] + 1] ^= 1 << 2
    file.write_bytes(data)
    with pytest.raises(BrokenAdapterError):
        inspect_adapter(directory, shape, 4)
