"""Norm, rotary positions with the store, and the gate: the kernels against double precision."""

import math

import pytest
import torch

from lorafleet_engine.kernels.rope.reference import HeadNorms, Heads, NewTokens, rotate_and_store

pytestmark = pytest.mark.gpu

BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 6e-3}
SIZES = [pytest.param(3, 96, id="small"), (1, 3584), (64, 3584), (257, 18944)]
DTYPES = [torch.float32, pytest.param(torch.bfloat16, id="bf16")]


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative L2; infinite where something was not written."""
    found = ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()
    return found if math.isfinite(found) else math.inf


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_norm_of_sum(device: torch.device, rows: int, width: int, dtype: torch.dtype) -> None:
    from lorafleet_engine.kernels.rms_norm import kernel

    x, delta = (torch.randn(rows, width, device=device).to(dtype) for _ in range(2))
    weight = torch.rand(width, device=device).to(dtype) + 0.5
    total, out = kernel.add_rms_norm(x, delta, weight, 1e-6)
    assert torch.equal(total, x + delta)

    def norm(value: torch.Tensor) -> torch.Tensor:
        wide = value.double()
        return wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()

    assert error(out, norm(total)) < BOUNDS[dtype]
    assert error(kernel.rms_norm(x, weight, 1e-6), norm(x)) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_gate(device: torch.device, rows: int, width: int, dtype: torch.dtype) -> None:
    from lorafleet_engine.kernels.silu_mul import kernel

    gate_up = torch.randn(rows, 2 * width, device=device).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert error(kernel.silu_mul(gate_up), gate * torch.sigmoid(gate) * up) < BOUNDS[dtype]


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "heads"),
    [
        pytest.param(3, Heads(4, 2, 16), id="small"),
        pytest.param(2, Heads(3, 1, 24), id="small-odd"),
        (1, Heads(28, 4, 128)),
        (65, Heads(28, 4, 128)),
        (9, Heads(9, 3, 64)),
    ],
)
def test_rotation_and_store(device: torch.device, tokens: int, heads: Heads, dtype: torch.dtype, normed: bool) -> None:
    from lorafleet_engine.kernels.rope import kernel

    qkv = torch.randn(tokens, (heads.query + 2 * heads.kv) * heads.dim, device=device).to(dtype)
    angles = torch.rand(tokens, heads.dim // 2, device=device) * 6.28
    table = torch.stack((angles.cos(), angles.sin()), dim=1)
    slots = torch.randperm(4 * tokens, device=device)[:tokens]
    new = NewTokens(slots, table[:, None, 0], table[:, None, 1])
    caches = [torch.full((4 * tokens, heads.kv * heads.dim), math.nan, device=device, dtype=dtype) for _ in range(4)]
    norms = None
    if normed:
        weights = (torch.rand(heads.dim, device=device).to(dtype) + 0.5 for _ in range(2))
        norms = HeadNorms(*weights, 1e-6)
    query = kernel.rotate_and_store(qkv, heads, new, (caches[0], caches[1]), norms)
    wanted = rotate_and_store(qkv, heads, new, (caches[2], caches[3]), norms)
    for got, right in ((query, wanted), (caches[0], caches[2]), (caches[1], caches[3])):
        assert torch.equal(got.isnan(), right.isnan())
        assert error(got.nan_to_num(), right.nan_to_num()) < BOUNDS[dtype]
