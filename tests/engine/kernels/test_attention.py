"""Attention over a paged cache against the formula, sequence by sequence; rows of others are poisoned."""

import math

import torch

from lorafleet_engine.kernels.attention.reference import attend_decode, attend_prefill

HEADS, KV_HEADS, DIM = 6, 2, 8
WIDTH = KV_HEADS * DIM


def formula(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """query [heads, dim] over keys and values [length, kv_heads, dim]."""
    out = []
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        weights = (keys[:, shared] @ query[head] / math.sqrt(DIM)).softmax(0)
        out.append(weights @ values[:, shared])
    return torch.stack(out)


def cache_of(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    """Caches poisoned but for row 0 (zeros) and the sequences' rows, which lie scattered."""
    generator = torch.Generator().manual_seed(5)
    keys, values = (torch.full((200, WIDTH), float("nan")) for _ in range(2))
    keys[0] = values[0] = 0
    free = torch.randperm(199, generator=generator).add(1).tolist()
    rows = [[free.pop() for _ in range(length)] for length in lengths]
    for own in rows:
        for cache in (keys, values):
            cache[own] = torch.randn(len(own), WIDTH, generator=generator)
    return keys, values, rows


def test_decode() -> None:
    lengths = [1, 7, 33]
    keys, values, rows = cache_of(lengths)
    query = torch.randn(3, HEADS, DIM, generator=torch.Generator().manual_seed(6))
    longest = 48
    index = torch.tensor([own + [0] * (longest - len(own)) for own in rows], dtype=torch.int32)
    bias = torch.where(torch.arange(longest) < torch.tensor(lengths)[:, None], 0.0, float("-inf"))[:, None, None]
    out = attend_decode(query, keys, values, index, bias)
    for number, own in enumerate(rows):
        shape = (len(own), KV_HEADS, DIM)
        torch.testing.assert_close(out[number], formula(query[number], keys[own].view(shape), values[own].view(shape)))


def test_prefill_of_a_later_chunk() -> None:
    length, count = 29, 10
    keys, values, (own,) = cache_of([length])
    query = torch.randn(count, HEADS, DIM, generator=torch.Generator().manual_seed(7))
    positions = torch.arange(length - count, length)
    bias = torch.where(torch.arange(length) <= positions[:, None], 0.0, float("-inf"))
    out = attend_prefill(query, keys, values, torch.tensor(own), bias)
    for number, position in enumerate(positions.tolist()):
        seen = own[: position + 1]
        shape = (len(seen), KV_HEADS, DIM)
        torch.testing.assert_close(
            out[number], formula(query[number], keys[seen].view(shape), values[seen].view(shape))
        )
