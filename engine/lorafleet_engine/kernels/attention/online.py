"""Pieces of a flash attention over a paged cache that decode.py and prefill.py share: fetch a block, take it in.

Called by those two only. Everything is inlined into their programs.
"""

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
"""Scores are scaled by it, so that exp2 serves in place of exp."""


@triton.jit
def fetch(cache, source, column, inside, DIM: tl.constexpr, WHOLE: tl.constexpr):
    """Rows of a cache at elements `source` [N]: [N, columns], zeros where not `inside`, which WHOLE says is nowhere."""
    WIDE: tl.constexpr = column.shape[0]
    place = cache + source[:, None] + column[None, :]
    if WHOLE:
        block = tl.load(place) if WIDE == DIM else tl.load(place, mask=(column < DIM)[None, :], other=0.0)
    elif WIDE == DIM:
        block = tl.load(place, mask=inside[:, None], other=0.0)
    else:
        block = tl.load(place, mask=inside[:, None] & (column < DIM)[None, :], other=0.0)
    return block


@triton.jit
def take_in(score, value, best, weight, total, BLIND: tl.constexpr, PRECISION: tl.constexpr):
    """One block's scores [M, N] (base 2, -inf where hidden) and values [N, D] into the running softmax. BLIND says that
    a row may have seen nothing yet."""
    better = tl.maximum(best, tl.max(score, axis=1))
    peak = tl.where(better == float("-inf"), 0.0, better) if BLIND else better
    kept = tl.exp2(best - peak)
    chance = tl.exp2(score - peak[:, None])
    weight = weight * kept + tl.sum(chance, axis=1)
    total = tl.dot(chance.to(value.dtype), value, total * kept[:, None], input_precision=PRECISION)
    return better, weight, total
