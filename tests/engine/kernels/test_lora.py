"""The LoRA op against one adapter at a time, row by row."""

import pytest
import torch

from lorafleet_engine.kernels.lora.reference import apply_lora

GRANULE, DEPTH, WIDTHS = 4, 12, (8, 4)


def place(pool: torch.Tensor, free: list[int], row: torch.Tensor) -> list[int]:
    """Put a row into granules that are nowhere near one another."""
    numbers = [free.pop() for _ in range(row.numel() // GRANULE)]
    pool[numbers] = row.view(-1, GRANULE)
    return numbers


@pytest.mark.parametrize("ranks", [[1], [5], [8, 16], [3, 1, 7], [2, 2, 2, 2, 2, 2]])
@pytest.mark.parametrize("popularity", ["one", "each", "skewed", "none"])
def test_against_row_by_row(ranks: list[int], popularity: str) -> None:
    generator = torch.Generator().manual_seed(3)
    tokens = 9
    owners = {
        "one": [0] * tokens,
        "each": [token % len(ranks) for token in range(tokens)],
        "skewed": [0 if token else len(ranks) - 1 for token in range(tokens)],
        "none": [-1] * tokens,
    }[popularity]
    x = torch.randn(tokens, DEPTH, generator=generator)
    out = torch.randn(tokens, sum(WIDTHS), generator=generator)
    downs = [[torch.randn(rank, DEPTH, generator=generator) for _ in WIDTHS] for rank in ranks]
    ups = [[torch.randn(rank, width, generator=generator) for width in WIDTHS] for rank in ranks]
    expected = out.clone()
    for token, owner in enumerate(owners):
        if owner >= 0:
            parts = [x[token] @ down.t() @ up for down, up in zip(downs[owner], ups[owner], strict=True)]
            expected[token] += torch.cat(parts)

    pool = torch.full((4096, GRANULE), float("nan"))
    pool[0] = 0
    free = torch.randperm(4095, generator=generator).add(1).tolist()
    padding = 3
    zeros = {size: [0] * (size // GRANULE) for size in (DEPTH, *WIDTHS)}
    index: list[int] = []
    for number in range(len(WIDTHS)):
        for adapter in downs:
            index += [g for row in adapter[number] for g in place(pool, free, row)]
        index += zeros[DEPTH] * padding
    for number, width in enumerate(WIDTHS):
        for adapter in ups:
            index += [g for row in adapter[number] for g in place(pool, free, row)]
        index += zeros[width] * padding
    row_owners = [number for number, rank in enumerate(ranks) for _ in range(rank)] + [-2] * padding
    mask = torch.tensor(owners)[:, None] == torch.tensor(row_owners)

    before = out.clone()
    apply_lora(out, x, pool, torch.tensor(index, dtype=torch.int32), mask, WIDTHS)
    torch.testing.assert_close(out, expected)
    alone = [token for token, owner in enumerate(owners) if owner < 0]
    assert torch.equal(out[alone], before[alone])
