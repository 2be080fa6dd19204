"""Ints fetched from pinned memory, against a plain copy; nothing around them is touched."""

import pytest
import torch

from lorafleet_engine.kernels.pinned import kernel, reference

pytestmark = pytest.mark.gpu
POISON = -7


@pytest.mark.parametrize("count", [4, 12, 512, 516, 30_000])
def test_fetch_small(device: torch.device, count: int) -> None:
    source = torch.randint(-(1 << 31), 1 << 31, (count + 8,), dtype=torch.int64).int()
    source = source.pin_memory() if device.type == "cuda" else source
    found, expected = (torch.full((count + 8,), POISON, dtype=torch.int32, device=device) for _ in range(2))
    kernel.fetch(source[:count], found[4 : count + 4])
    reference.fetch(source[:count], expected[4 : count + 4])
    assert torch.equal(found, expected)
    assert found[:4].eq(POISON).all()


def test_what_is_written_next_is_fetched_next(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("the interpreter waits")
    buffers = [torch.zeros(2048, dtype=torch.int32).pin_memory() for _ in range(2)]
    target = torch.empty(2048, dtype=torch.int32, device=device)
    for number in range(200):
        buffers[number % 2].fill_(number)
        kernel.fetch(buffers[number % 2], target)
        torch.cuda.current_stream().synchronize()
        assert target.eq(number).all(), number
