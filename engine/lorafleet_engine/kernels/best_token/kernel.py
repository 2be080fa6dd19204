"""The most likely token on CUDA, in one launch: a row is cut into parts, the last part to arrive compares all. Of equal
logits the first counts. Called by this op only."""

import torch
import triton
import triton.language as tl

FEW_ROWS = 32
"""Rows below which each is cut finely, because nothing else fills the device."""
PARTS = (64, 16)
"""Programs a row, of few rows and of many."""
BLOCK = 1024


@triton.jit
def _best_token(
    logits,
    sampled,
    told,
    arrived,
    bests,
    numbers,
    VOCAB: tl.constexpr,
    SHARE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    number = part * SHARE + lane
    for at in range(part * SHARE, tl.minimum(part * SHARE + SHARE, VOCAB), BLOCK):
        here = at + lane
        value = tl.load(logits + row.to(tl.int64) * VOCAB + here, mask=here < VOCAB, other=float("-inf"))
        value = value.to(tl.float32)
        value = tl.where(value == value, value, float("inf"))  # what is no number is not finite
        number = tl.where(value > best, here, number)
        best = tl.maximum(best, value)
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, number, VOCAB), axis=0)
    tl.store(bests + row * PARTS + part, top)
    tl.store(numbers + row * PARTS + part, first)
    tl.debug_barrier()
    if tl.atomic_add(arrived + row, 1, sem="acq_rel") == PARTS - 1:
        tl.store(arrived + row, 0)
        each = row * PARTS + tl.arange(0, PARTS)
        tops = tl.load(bests + each, cache_modifier=".cg")
        top = tl.max(tops, axis=0)
        first = tl.min(tl.where(tops == top, tl.load(numbers + each, cache_modifier=".cg"), VOCAB), axis=0)
        first = tl.minimum(first, VOCAB - 1)
        tl.store(sampled + row, first)
        finite = (top > float("-inf")) & (top < float("inf"))
        tl.store(told + row, tl.where(finite, first, -1))


def best_token(logits: torch.Tensor, sampled: torch.Tensor, told: torch.Tensor, arrived: torch.Tensor) -> None:
    """See the op; logits are contiguous."""
    rows, vocab = logits.shape
    if not rows:
        return
    parts = PARTS[rows >= FEW_ROWS]
    bests = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    numbers = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    share = triton.cdiv(triton.cdiv(vocab, parts), BLOCK) * BLOCK
    _best_token[(rows, parts)](
        logits, sampled, told, arrived, bests, numbers, VOCAB=vocab, SHARE=share, PARTS=parts, BLOCK=BLOCK, num_warps=4
    )
