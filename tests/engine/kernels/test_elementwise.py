"""Norm, rotary positions and gate against their formulas."""

import torch

from lorafleet_engine.kernels.rms_norm.reference import rms_norm
from lorafleet_engine.kernels.rope.reference import rotate
from lorafleet_engine.kernels.silu_mul.reference import silu_mul


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def test_rms_norm() -> None:
    x, weight = numbers(5, 24), numbers(24)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected)


def test_rotation_is_a_turn_of_complex_pairs() -> None:
    x, angles = numbers(4, 3, 8), numbers(4, 4)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(4, 1, 4), angles[:, None])
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    torch.testing.assert_close(rotate(x, angles.cos()[:, None], angles.sin()[:, None]), expected)
    assert rotate(x.bfloat16(), angles.cos()[:, None], angles.sin()[:, None]).dtype == torch.bfloat16


def test_silu_mul() -> None:
    x = numbers(3, 10)
    gate, up = x[:, :5], x[:, 5:]
    torch.testing.assert_close(silu_mul(x), gate / (1 + (-gate).exp()) * up)
