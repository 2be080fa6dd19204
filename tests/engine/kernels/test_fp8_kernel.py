"""Rounding to e4m3 on the device is the reference's bit for bit, and the product is that of the rounded numbers."""

import math

import pytest
import torch

from lorafleet_engine.kernels.fp8 import reference

pytestmark = pytest.mark.gpu

SIZES = [pytest.param(3, 96, id="small"), (1, 3584), (64, 3584), (257, 18944)]
PRODUCTS = [(1, 3584, 4608), (16, 3584, 37888), (3, 18944, 3584), (17, 18944, 3584), (64, 3584, 37888)]
PRODUCTS += [(65, 18944, 3584), (256, 3584, 37888), (3, 576, 1536), (40, 3584, 4608)]
DTYPES = [torch.float32, pytest.param(torch.bfloat16, id="bf16")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_rounding(device: torch.device, rows: int, width: int, dtype: torch.dtype) -> None:
    from lorafleet_engine.kernels.fp8 import kernel

    x = (torch.randn(rows, width, device=device) * torch.logspace(-4, 3, rows, device=device)[:, None]).to(dtype)
    x[-1, 5] = 0
    data, scales = kernel.quantize_rows(x)
    wanted = reference.quantize_rows(x.cpu())  # torch divides by a number less exactly on CUDA
    assert torch.equal(scales.cpu(), wanted[1])
    right = (data.float().cpu() == wanted[0].float()).double().mean().item()
    # Triton's interpreter forgets the carry where rounding leads to the next power of two.
    assert right == 1 if torch.cuda.is_available() else right > 0.9


def test_small_nan_reaches_every_number(device: torch.device) -> None:
    from lorafleet_engine.kernels.fp8 import kernel

    x = torch.ones(2, 48, device=device)
    x[1, 7] = math.nan
    data, scales = kernel.quantize_rows(x)
    assert bool(scales[1].isnan().all())
    assert not bool(scales[0].isnan().any() | data[0].float().isnan().any())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="_scaled_mm is compiled code")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "width", "outputs"), PRODUCTS)
def test_product(device: torch.device, rows: int, width: int, outputs: int, biased: bool) -> None:
    from lorafleet_engine.kernels.fp8 import kernel

    x, matrix = (torch.randn(n, width, device=device).bfloat16() for n in (rows, outputs))
    bias = torch.randn(outputs, device=device).bfloat16() if biased else None
    pairs = reference.quantize_rows(x), reference.quantize_rows(matrix)
    out = kernel.scaled_linear(*pairs, bias, torch.bfloat16).double()
    wanted = reference.scaled_linear(*pairs, bias, torch.float32).double()
    assert ((out - wanted).norm() / wanted.norm()).item() < 6e-3
