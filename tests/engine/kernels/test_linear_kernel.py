"""Products of a handful of tokens: the kernel against double precision, whatever the sizes."""

import math

import pytest
import torch

from tests.engine.kernels.test_elementwise_kernel import error

pytestmark = pytest.mark.gpu

BOUNDS = {torch.float32: 5e-6, torch.bfloat16: 6e-3}
BF16 = torch.bfloat16
SIZES = [
    pytest.param(40, 272, torch.float32, id="small"),  # only bfloat16 comes here on a device
    *((*size, BF16) for size in ((40, 272), (3584, 18944), (4608, 3584), (37888, 3584), (576, 1536), (1200, 96))),
]


@pytest.mark.parametrize("tokens", [1, 3, 8, 16])
@pytest.mark.parametrize(("outputs", "depth", "dtype"), SIZES)
def test_product(device: torch.device, outputs: int, depth: int, tokens: int, dtype: torch.dtype) -> None:
    from lorafleet_engine.kernels.linear import kernel

    x = torch.randn(tokens, depth, device=device).to(dtype)
    weight = (torch.randn(outputs, depth, device=device) / math.sqrt(depth)).to(dtype)
    bias = torch.randn(outputs, device=device).to(dtype)
    wanted = x.double() @ weight.double().t()
    assert error(kernel.linear(x, weight, None), wanted) < BOUNDS[dtype]
    assert error(kernel.linear(x, weight, bias), wanted + bias.double()) < BOUNDS[dtype]


@pytest.mark.parametrize("tokens", [1, 5, 16])
@pytest.mark.parametrize(("outputs", "depth", "dtype"), SIZES)
def test_gated_product(device: torch.device, outputs: int, depth: int, tokens: int, dtype: torch.dtype) -> None:
    from lorafleet_engine.kernels.linear import kernel

    x = torch.randn(tokens, depth, device=device).to(dtype)
    weight = (torch.randn(2 * outputs, depth, device=device) / math.sqrt(depth)).to(dtype)
    gate, up = (x.double() @ weight.double().t()).to(dtype).double().chunk(2, dim=-1)
    got = kernel.gated_linear(x, weight)
    assert error(got, gate * torch.sigmoid(gate) * up) < BOUNDS[dtype]
    if tokens > 2:
        assert torch.equal(got[:2], kernel.gated_linear(x[:2], weight)), "a token does not feel its neighbours"


@pytest.mark.parametrize("tokens", [1, 2])
def test_small_product_writes_where_it_is_told(device: torch.device, tokens: int) -> None:
    from lorafleet_engine.kernels.linear import kernel

    x, weight = torch.randn(tokens, 48, device=device), torch.randn(70, 48, device=device)
    room = torch.full((tokens + 1, 70), math.nan, device=device)
    kernel.linear(x, weight, None, room[:tokens])
    assert error(room[:tokens], x.double() @ weight.double().t()) < BOUNDS[torch.float32]
    assert room[tokens:].isnan().all()
