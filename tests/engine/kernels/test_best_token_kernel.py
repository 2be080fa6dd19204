"""The most likely token: the kernel against torch, over rows, vocabularies, equal values and what is not finite."""

import math

import pytest
import torch

from tests.engine.kernels.test_elementwise_kernel import DTYPES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "vocab"),
    [pytest.param(3, 320, id="small"), pytest.param(2, 2500, id="small-odd"), (1, 152064), (33, 50257), (256, 151936)],
)
def test_first_of_the_highest(device: torch.device, dtype: torch.dtype, rows: int, vocab: int) -> None:
    from lorafleet_engine.kernels.best_token import kernel

    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows)).to(device, dtype)
    first = torch.arange(rows, device=device) * 7 % vocab
    logits[torch.arange(rows, device=device), first] = 9.0
    logits[torch.arange(rows, device=device), (first + vocab // 2) % vocab] = 9.0
    wanted = torch.minimum(first, (first + vocab // 2) % vocab).int()
    arrived = torch.zeros(rows, dtype=torch.int32, device=device)
    for _ in range(2):
        sampled, told = (torch.full((rows,), -7, dtype=torch.int32, device=device) for _ in range(2))
        kernel.best_token(logits, sampled, told, arrived)
        assert torch.equal(sampled, wanted)
        assert torch.equal(told, wanted)
        assert not arrived.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [pytest.param(320, id="small"), 152064])
def test_rows_that_are_not_finite(device: torch.device, dtype: torch.dtype, vocab: int) -> None:
    from lorafleet_engine.kernels.best_token import kernel

    logits = torch.randn(5, vocab).to(device, dtype)
    logits[0, 5] = math.nan
    logits[1, 6] = math.inf
    logits[2] = -math.inf
    logits[3] = math.nan
    logits[4, 7:] = -math.inf
    arrived = torch.zeros(5, dtype=torch.int32, device=device)
    sampled, told = (torch.full((5,), -7, dtype=torch.int32, device=device) for _ in range(2))
    kernel.best_token(logits, sampled, told, arrived)
    best = int(logits[4].argmax())
    assert told.tolist() == [-1, -1, -1, -1, best]
    assert sampled.tolist()[:2] == [5, 6]
    assert sampled[4] == best
    assert ((sampled >= 0) & (sampled < vocab)).all()
