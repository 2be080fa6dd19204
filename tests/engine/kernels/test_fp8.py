"""8-bit numbers with one scale a row: how far rounding leads, and that nothing else is lost."""

import torch

from lorafleet_engine.kernels.fp8 import quantize_rows, scaled_linear
from lorafleet_engine.layers.weight import make_fp8


def test_each_number_is_near() -> None:
    x = torch.randn(5, 200, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-3, 1, 30, 1e4, 1])[:, None]
    found = quantize_rows(x)
    assert found.data.dtype is torch.float8_e4m3fn
    back = found.data.float() * found.scales
    step = found.scales * 2**-9  # the least number of e4m3
    assert bool(((back - x).abs() <= torch.maximum(x.abs() / 16, step)).all())
    assert torch.equal(back.abs().amax(-1), x.abs().amax(-1))


def test_zeros_stay_and_nans_are_seen() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, float("nan")], [float("inf"), 2.0]])
    weight = quantize_rows(torch.tensor([[1.0, 0.5]]))
    out = scaled_linear(quantize_rows(x), weight, None, torch.float32)
    assert out[0].item() == 0
    assert bool(out[1:].isnan().all())


def test_product_is_of_the_rounded_numbers() -> None:
    generator = torch.Generator().manual_seed(1)
    x, matrix = torch.randn(7, 64, generator=generator), torch.randn(48, 64, generator=generator)
    bias = torch.randn(48, generator=generator)
    left, right = (rows.data.double() * rows.scales.double() for rows in (quantize_rows(x), quantize_rows(matrix)))
    out = make_fp8(matrix)(x, bias).double()
    assert (out - (left @ right.t() + bias)).abs().max() < 1e-4
    exact = x.double() @ matrix.double().t() + bias
    assert 1e-3 < ((out - exact).norm() / exact.norm()).item() < 5e-2
