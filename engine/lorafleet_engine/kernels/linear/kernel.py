"""Products of a handful of tokens on CUDA, which wait for the weights: each is read once, by one program, far ahead.
Called by this op only.

Programs are small and equal, and all of a matrix run at once or in whole rounds: who ends early leaves its share of the
memory's bandwidth to the others, so that no input has to be cut and joined. One token is multiplied by threads that
read the weights straight into registers; several by matrix units, outputs first because of those the units take 16 at
least, of tokens 8. See docs/benchmarks for what other sizes take.
"""

import torch
import triton
import triton.language as tl

LEAST_TOKENS = 8
"""Of a matrix unit's second side."""
DEEP, WIDE = 8192, 16384
"""Inputs and outputs from which on another form is faster."""


@triton.jit
def _finish(total, up, bias, row, there, out, BIASED: tl.constexpr, GATED: tl.constexpr):
    """Add the bias, or apply the gate to what is rounded as where that is a launch of its own. Outputs go first."""
    if BIASED:
        total += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
    if GATED:
        gate = total.to(out.dtype.element_ty).to(tl.float32)
        total = gate / (1.0 + tl.exp(-gate)) * up.to(out.dtype.element_ty).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["count"])
def _several(
    x,
    weight,
    bias,
    out,
    count,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """ROWS outputs of up to TOKENS tokens; GATED: of gate and up, whose weights lie N rows apart."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    element = tl.arange(0, CHUNK)
    there = row < N
    live = token < count
    first = weight + row.to(tl.int64)[:, None] * K + element[None, :]
    second = first + N * K
    source = x + token[:, None] * K + element[None, :]
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    up = tl.zeros((ROWS, TOKENS), tl.float32)
    for at in tl.range(0, K, CHUNK, num_stages=STAGES):
        inside = (at + element < K)[None, :]
        tokens = tl.load(source + at, mask=live[:, None] & inside, other=0.0)
        a = tl.load(first + at, mask=there[:, None] & inside, other=0.0, eviction_policy="evict_first")
        total = tl.dot(a, tl.trans(tokens), total, input_precision=PRECISION)
        if GATED:
            b = tl.load(second + at, mask=there[:, None] & inside, other=0.0, eviction_policy="evict_first")
            up = tl.dot(b, tl.trans(tokens), up, input_precision=PRECISION)
    total = _finish(total, up, bias, row[:, None], there[:, None], out, BIASED, GATED)
    tl.store(out + token[None, :] * N + row[:, None], total, mask=there[:, None] & live[None, :])


@triton.jit
def _one(
    x,
    weight,
    bias,
    out,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
):
    """ROWS outputs of one token, as _several."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    element = tl.arange(0, CHUNK)
    there = row < N
    first = weight + row.to(tl.int64)[:, None] * K + element[None, :]
    second = first + N * K
    products = tl.zeros((ROWS, CHUNK), tl.float32)
    ups = tl.zeros((ROWS, CHUNK), tl.float32)
    for at in tl.range(0, K, CHUNK, num_stages=STAGES):
        inside = at + element < K
        token = tl.load(x + at + element, mask=inside, other=0.0).to(tl.float32)[None, :]
        real = there[:, None] & inside[None, :]
        a = tl.load(first + at, mask=real, other=0.0, eviction_policy="evict_first")
        products += a.to(tl.float32) * token
        if GATED:
            b = tl.load(second + at, mask=real, other=0.0, eviction_policy="evict_first")
            ups += b.to(tl.float32) * token
    total = _finish(tl.sum(products, axis=1), tl.sum(ups, axis=1), bias, row, there, out, BIASED, GATED)
    tl.store(out + row, total, mask=there)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the op."""
    made = torch.empty(x.shape[0], weight.shape[0], device=x.device, dtype=x.dtype) if out is None else out
    return _launch(x, weight, bias, made, gated=False)


def gated_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See the op."""
    out = torch.empty(x.shape[0], weight.shape[0] // 2, device=x.device, dtype=x.dtype)
    return _launch(x, weight, None, out, gated=True)


def _launch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, *, gated: bool
) -> torch.Tensor:
    (count, depth), outputs = x.shape, out.shape[1]
    given = (x, weight, x if bias is None else bias, out)
    form = {"N": outputs, "K": depth, "BIASED": bias is not None, "GATED": gated}
    if count == 1:
        rows, chunk, stages = (8, 512, 3) if depth > DEEP else (1 if gated else 2, 2048, 1)
        _one[(triton.cdiv(outputs, rows),)](*given, ROWS=rows, CHUNK=chunk, STAGES=stages, num_warps=4, **form)
        return out
    # The chunk is the same everywhere, so that sums are, whatever else a step has.
    rows, stages, warps = (32, 4, 2) if outputs >= WIDE and not gated else (16, 6 if depth > DEEP else 4, 1)
    tokens = max(triton.next_power_of_2(count), LEAST_TOKENS)
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    _several[(triton.cdiv(outputs, rows),)](
        *given,
        count,
        ROWS=rows,
        TOKENS=tokens,
        CHUNK=256,
        STAGES=stages,
        PRECISION=precision,
        num_warps=warps,
        num_stages=1,
        **form,
    )
    return out
