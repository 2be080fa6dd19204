"""Drawing on CUDA without sorting: a program a row finds the lowest logit of top_p by bisection over the bits of fp32,
then walks the vocabulary in order. A row's draw depends on that row only. Called by this op only."""

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
BLOCK = 4096
WAYS = 4
"""Parts that each pass cuts the range of logits into."""
PASSES = 16
"""What finds one of 2^32 logits; half as many do where a row has the upper 16 bits only, as bfloat16 has."""


@triton.jit
def _ordered(x):
    """fp32 as int64 in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def _fetch(source, at, peak, steep, shift, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """A block's logits in order, without their last `shift` bits, and their chances over that of the peak; none beyond
    the vocabulary."""
    here = at + tl.arange(0, BLOCK)
    x = tl.load(source + here, mask=here < VOCAB, other=float("-inf"))
    return _ordered(x) >> shift, tl.exp2((x - peak) * steep)


@triton.jit
def _draw_token(
    rows,
    settings,
    ids,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
    PASSES: tl.constexpr,
    LOG2_E: tl.constexpr,
):
    row = tl.program_id(0)
    source = rows + row.to(tl.int64) * VOCAB
    steep = (LOG2_E / tl.load(settings + row * 4)).to(tl.float32)
    top_p = tl.load(settings + row * 4 + 1)
    min_p = tl.load(settings + row * 4 + 2).to(tl.float32)
    lane = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    lower = tl.zeros((BLOCK,), tl.int32)
    for at in range(0, VOCAB, BLOCK):
        x = tl.load(source + at + lane, mask=at + lane < VOCAB, other=float("-inf"))
        highest = tl.maximum(highest, x)
        lower = lower | (x.to(tl.int32, bitcast=True) & 0xFFFF)
    peak = tl.max(highest, axis=0)
    coarse = tl.max(lower, axis=0) == 0
    shift = tl.where(coarse, 16, 0).to(tl.int64)
    passes = tl.where(coarse, PASSES // 2, PASSES)
    least = _ordered(tl.full((1,), float("-inf"), tl.float32)) >> shift
    if top_p < 1:
        whole = tl.zeros((BLOCK,), tl.float32)
        for at in range(0, VOCAB, BLOCK):
            _, chance = _fetch(source, at, peak, steep, shift, VOCAB, BLOCK)
            whole += chance
        goal = tl.sum(whole.to(tl.float64), axis=0) * top_p
        least = _least(source, peak, steep, shift, passes, least, goal, VOCAB, BLOCK, WAYS)
    total = tl.zeros((1,), tl.float64)
    for at in range(0, VOCAB, BLOCK):
        order, chance = _fetch(source, at, peak, steep, shift, VOCAB, BLOCK)
        total += tl.sum(tl.where((order >= least) & (chance >= min_p), chance, 0.0).to(tl.float64), axis=0)
    target = total * tl.load(settings + row * 4 + 3)
    found = tl.full((1,), VOCAB, tl.int32)
    before = tl.zeros((1,), tl.float64)
    for at in range(0, VOCAB, BLOCK):
        order, chance = _fetch(source, at, peak, steep, shift, VOCAB, BLOCK)
        kept = (order >= least) & (chance >= min_p) & (chance > 0)
        chance = tl.where(kept, chance, 0.0).to(tl.float64)
        after = before + tl.sum(chance, axis=0)
        # The sum of a block may be rounded otherwise than its running sum: then its last token is the one.
        inside = tl.min(tl.where(kept & (before + tl.cumsum(chance, axis=0) > target), at + lane, VOCAB), axis=0)
        last = tl.max(tl.where(kept, at + lane, -1), axis=0)
        inside = tl.where(inside < VOCAB, inside, last)
        found = tl.where((found == VOCAB) & (after > target), inside, found)
        before = after
    tl.store(ids + row + tl.arange(0, 1), tl.minimum(tl.maximum(found, 0), VOCAB - 1).to(tl.int64))


@triton.jit
def _least(
    source,
    peak,
    steep,
    shift,
    passes,
    low,
    goal,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    """The highest ordered logit [1] such that all from it on have at least `goal` together; `low` is surely not above
    it."""
    way = tl.arange(0, WAYS)
    high = (_ordered(tl.zeros((1,), tl.float32) + peak) >> shift) + 1
    for _ in range(passes):
        bound = low + (high - low) * way // WAYS
        sums = tl.zeros((BLOCK, WAYS), tl.float32)
        for at in range(0, VOCAB, BLOCK):
            order, chance = _fetch(source, at, peak, steep, shift, VOCAB, BLOCK)
            sums += tl.where(order[:, None] >= bound[None, :], chance[:, None], 0.0)
        enough = (tl.sum(sums.to(tl.float64), axis=0) >= goal) | (way == 0)
        count = tl.sum(enough.to(tl.int64), axis=0)
        width = high - low
        high = tl.where(count < WAYS, low + width * count // WAYS, high)
        low = low + width * (count - 1) // WAYS
    return low


def draw_token(rows: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    """See the op; both are contiguous."""
    count, vocab = rows.shape
    ids = torch.empty(count, dtype=torch.int64, device=rows.device)
    _draw_token[(count,)](
        rows, settings, ids, VOCAB=vocab, BLOCK=BLOCK, WAYS=WAYS, PASSES=PASSES, LOG2_E=LOG2_E, num_warps=8
    )
    return ids
