"""Decode attention: the kernel against double precision, over lengths, groups of heads and splits."""

import math

import pytest
import torch

from lorafleet_engine.kernels.attention.reference import CacheLayout, DecodeContexts
from tests.engine.kernels.test_elementwise_kernel import DTYPES, error

pytestmark = pytest.mark.gpu

BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
PAGE = 16


def exact(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: list[list[int]], kv_heads: int
) -> torch.Tensor:
    """Attention of every sequence over its rows, in double precision."""
    out = []
    for q, own in zip(query.double(), rows, strict=True):
        key = keys[own].double().view(len(own), kv_heads, -1)
        value = values[own].double().view(len(own), kv_heads, -1)
        grouped = q.view(kv_heads, -1, q.shape[-1])
        chance = torch.softmax(torch.einsum("hgd,nhd->hgn", grouped, key) / math.sqrt(q.shape[-1]), dim=-1)
        out.append(torch.einsum("hgn,nhd->hgd", chance, value).reshape(q.shape))
    return torch.stack(out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "lengths", "capacity"),
    [
        pytest.param(4, 2, 16, [1, 17, 70], 128, id="small"),
        pytest.param(3, 1, 24, [40], 64, id="small-odd"),
        (28, 4, 128, [200], 256),
        (28, 4, 128, [1, 15, 16, 17, 200, 256, 129, 64], 256),
        (28, 4, 128, [200 + n % 7 for n in range(64)], 256),
        (28, 4, 128, [1, 4096, 3000, 2047] * 16, 4096),
        (28, 4, 128, [30_000], 32_768),
        (9, 3, 64, [5, 500, 80], 512),
        (32, 8, 128, [333] * 5, 512),
        (8, 8, 96, [77, 3], 128),
    ],
)
def test_decode(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, lengths: list[int], capacity: int
) -> None:
    from lorafleet_engine.kernels.attention import kernel

    pages = capacity // PAGE
    total = sum(-(-length // PAGE) for length in lengths) + 2
    page_rows = 2 * PAGE
    generator = torch.Generator().manual_seed(len(lengths))
    free = (torch.randperm(total - 1, generator=generator) + 1).tolist()
    tables = torch.zeros(len(lengths), pages, dtype=torch.int32)
    rows = []
    for number, length in enumerate(lengths):
        own = [free.pop() for _ in range(-(-length // PAGE))]
        tables[number, : len(own)] = torch.tensor(own)
        rows.append([own[at // PAGE] * page_rows + at % PAGE for at in range(length)])
    cache = torch.full((total * page_rows, kv_heads * dim), math.nan, device=device, dtype=dtype)
    keys, values = cache.clone(), cache.clone()
    used = torch.tensor([row for own in rows for row in own], device=device)
    keys[used], values[used] = (torch.randn(len(used), kv_heads * dim, device=device).to(dtype) for _ in range(2))
    query = torch.randn(len(lengths), heads, dim, device=device).to(dtype)
    contexts = DecodeContexts(
        tables.to(device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        CacheLayout(PAGE, page_rows, 0),
        None,
        None,
    )
    got = kernel.attend_decode(query, keys, values, contexts)
    assert error(got, exact(query, keys, values, rows, kv_heads)) < BOUNDS[dtype]
    assert torch.equal(got, kernel.attend_decode(query, keys, values, contexts))


def test_splits_follow_the_shapes() -> None:
    from lorafleet_engine.kernels.attention.kernel import split_count

    assert split_count(4, 256, 132) == 4
    assert split_count(4, 32_768, 132) == 128
    assert split_count(256, 256, 132) == 1
    assert split_count(256, 4096, 132) == 3
