"""Draws by the kernel, which never sorts, against those in double precision from the sorted vocabulary."""

import math

import pytest
import torch

from lorafleet_engine.kernels.draw_token import reference

pytestmark = pytest.mark.gpu


def settings_of(rows: int) -> torch.Tensor:
    """Every kind of temperature, top_p and min_p, and random numbers with the ends of their range."""
    generator = torch.Generator().manual_seed(rows)
    kinds = [(1.0, 1.0, 0.0), (0.7, 0.9, 0.0), (1.5, 0.5, 0.0), (1.0, 0.01, 0.0), (2.0, 0.95, 0.05), (0.2, 1.0, 0.3)]
    chances = torch.rand(rows, generator=generator, dtype=torch.float64)
    chances[0], chances[-1] = 0.0, math.nextafter(1, 0)
    told = torch.tensor([kinds[row % len(kinds)] for row in range(rows)], dtype=torch.float64)
    return torch.cat((told, chances[:, None]), dim=1)


@pytest.mark.parametrize("form", ["fp32", "bf16", "ties"])
@pytest.mark.parametrize(
    ("rows", "vocab"), [pytest.param(14, 320, id="small"), pytest.param(7, 4500, id="small-blocks"), (64, 152064)]
)
def test_as_from_the_sorted_vocabulary(device: torch.device, rows: int, vocab: int, form: str) -> None:
    """Also of logits that were bfloat16, and where many tokens are equally likely."""
    from lorafleet_engine.kernels.draw_token import kernel

    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    logits = {"fp32": logits, "bf16": logits.bfloat16().float(), "ties": (logits * 2).round() / 2}[form]
    told = settings_of(rows)
    got = kernel.draw_token(logits.to(device), told.to(device)).cpu()
    wanted = reference.draw_token(logits, told)
    assert (got != wanted).sum() <= rows // 50


@pytest.mark.parametrize("top_p", [0.3, 1.0])
def test_rows_that_are_not_finite_end(device: torch.device, top_p: float) -> None:
    from lorafleet_engine.kernels.draw_token import kernel

    logits = torch.zeros(3, 50)
    logits[0, 3], logits[1, 4], logits[2] = math.nan, math.inf, -math.inf
    told = torch.tensor([[1.0, top_p, 0.0, 0.5]] * 3, dtype=torch.float64)
    got = kernel.draw_token(logits.to(device), told.to(device))
    assert ((got >= 0) & (got < 50)).all()


def test_small_all_of_one_row_whatever_the_neighbours(device: torch.device) -> None:
    from lorafleet_engine.kernels.draw_token import kernel

    logits, told = torch.randn(6, 700).to(device), settings_of(6).to(device)
    together = kernel.draw_token(logits, told)
    assert torch.equal(together[2:3], kernel.draw_token(logits[2:3].contiguous(), told[2:3].contiguous()))
