"""Heads normed and rotated within a program. Called by the kernels of attention; everything is inlined into them."""

import triton
import triton.language as tl


@triton.jit
def turned(heads, cos, sin, norm, eps, column, DIM: tl.constexpr, NORM: tl.constexpr):
    """Heads [R, columns] fp32 of one token, which begin at pointers `heads` [R]; zeros beyond DIM. cos and sin
    [DIM / 2] are the token's angles, `norm` [DIM] is the weight of the heads' norm, if there is one."""
    HALF: tl.constexpr = DIM // 2
    inside = column < DIM
    across = tl.where(column < HALF, column + HALF, column - HALF)
    own = tl.load(heads[:, None] + column[None, :], mask=inside[None, :], other=0.0).to(tl.float32)
    other = tl.load(heads[:, None] + across[None, :], mask=inside[None, :], other=0.0).to(tl.float32)
    if NORM:
        inverse = 1.0 / tl.sqrt_rn(tl.sum(own * own, axis=1) / DIM + eps)
        own *= inverse[:, None] * tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        other *= inverse[:, None] * tl.load(norm + across, mask=inside, other=0.0).to(tl.float32)[None, :]
    c = tl.load(cos + column % HALF, mask=inside, other=0.0)
    s = tl.load(sin + column % HALF, mask=inside, other=0.0)
    return own * c[None, :] + other * tl.where(column < HALF, -s, s)[None, :]
