"""Decode attention on CUDA: contexts are cut into splits, a program for each split of one KV head, joined by the last.

The query heads that share a KV head are the rows of one matrix product (GQA packing), so every key is read once.
A list of splits is made on the device once a step from the true lengths: how many programs there are follows the number
of sequences alone, so that one graph serves contexts of any length. Programs leave when their
work is done; the last of a few neighbouring splits to arrive joins those in their order, the last of these joins all,
whatever the order of arrival: results are deterministic. Called by kernel.py only.
"""

import triton
import triton.language as tl

from lorafleet_engine.kernels.attention.online import fetch, take_in
from lorafleet_engine.kernels.rope.turning import turned

RECORD = 16
"""Ints of a split in the list: sequence (-1: none), first token, end, first of the sequence's splits, how many it has,
where its pages begin, the first token that is seen; from the eighth on the pages of its first block."""


@triton.jit(do_not_specialize=["count", "spread", "least", "capacity"])
def list_splits(
    lengths,
    table_starts,
    pages,
    splits,
    arrived,
    count,
    spread,
    least,
    capacity,
    KV_HEADS: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    RECORD: tl.constexpr,
):
    """Cut contexts into equal splits of at least `least` tokens, at most `spread` more splits than sequences."""
    sequence = tl.arange(0, PADDED)
    real = sequence < count
    length = tl.load(lengths + sequence, mask=real, other=0)
    table = tl.load(table_starts + sequence, mask=real, other=0)
    floor = tl.maximum(length - WINDOW, 0) if WINDOW else tl.zeros_like(length)
    begin = floor // BLOCK * BLOCK
    seen = length - begin
    most = tl.maximum(tl.cdiv(tl.sum(seen, axis=0), spread), least)
    share = tl.cdiv(tl.cdiv(seen, tl.maximum(tl.cdiv(seen, most), 1)), BLOCK) * BLOCK
    parts = tl.cdiv(seen, tl.maximum(share, 1))
    first = tl.cumsum(parts, axis=0) - parts
    for part in range(tl.program_id(0), tl.max(parts, axis=0), tl.num_programs(0)):
        record = splits + (first + part) * RECORD
        used = part < parts
        start = begin + part * share
        tl.store(record, sequence, mask=used)
        tl.store(record + 1, start, mask=used)
        tl.store(record + 2, tl.minimum(start + share, length), mask=used)
        tl.store(record + 3, first, mask=used)
        tl.store(record + 4, parts, mask=used)
        tl.store(record + 5, table, mask=used)
        tl.store(record + 6, floor, mask=used)
        for at in range(BLOCK // PAGE):
            there = used & (start + at * PAGE < length)
            page = tl.load(pages + table + start // PAGE + at, mask=there, other=0)
            tl.store(record + 8 + at, page, mask=there)
    if tl.program_id(0) == 0:
        for at in range(tl.sum(parts, axis=0), capacity, PADDED):
            tl.store(splits + (at + sequence) * RECORD, -1, mask=at + sequence < capacity)
        for at in range(0, capacity * 2 * KV_HEADS, PADDED):
            tl.store(arrived + at + sequence, 0, mask=at + sequence < capacity * 2 * KV_HEADS)


@triton.jit
def attend_splits(
    query,
    keys,
    values,
    pages,
    splits,
    arrived,
    partial,
    stats,
    out,
    cos,
    sin,
    slots,
    query_norm,
    key_norm,
    angle_stride,
    eps,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    NARROW: tl.constexpr,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    RAW: tl.constexpr,
    NORM: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    JOINED: tl.constexpr,
    RECORD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`query` [T, HEADS * DIM] is ready and the tokens' keys and values are stored; or RAW: it is [T, q, k, v], to be
    rotated (and normed), and the split that ends with its token stores the key and value."""
    KV_HEADS: tl.constexpr = HEADS // GROUP
    KV_ROW: tl.constexpr = KV_HEADS * DIM
    head = tl.program_id(0)
    record = splits + tl.program_id(1) * RECORD
    sequence = tl.load(record)
    start = tl.load(record + 1)
    end = tl.load(record + 2)
    first = tl.load(record + 3)
    parts = tl.load(record + 4)
    table = pages + tl.load(record + 5)
    floor = tl.load(record + 6)
    if sequence < 0:
        return
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    step = tl.arange(0, BLOCK)
    own = (row < GROUP)[:, None] & (column < DIM)[None, :]
    place = (sequence.to(tl.int64) * HEADS + head * GROUP + row)[:, None] * DIM + column[None, :]
    page = tl.load(record + 8 + step // PAGE, mask=start + step < end, other=0)
    if RAW:
        raw = query + sequence.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * DIM)
        angles = sequence * angle_stride
        heads = tl.where(row < GROUP, head * GROUP + row, 0)
        q = turned(raw + heads * DIM, cos + angles, sin + angles, query_norm, eps, column, DIM, NORM)
        q = tl.where(own, q, 0.0).to(query.dtype.element_ty)
        if tl.program_id(1) == first + parts - 1:
            slot = tl.load(slots + sequence) * KV_ROW + head * DIM + column
            one = HEADS + head + tl.arange(0, 1)
            key = turned(raw + one * DIM, cos + angles, sin + angles, key_norm, eps, column, DIM, NORM)
            value = tl.load(raw + (HEADS + KV_HEADS + head) * DIM + column, mask=column < DIM, other=0.0)
            tl.store(keys + slot[None, :], key, mask=(column < DIM)[None, :])
            tl.store(values + slot, value, mask=column < DIM)
            tl.debug_barrier()
    else:
        q = tl.load(query + place, mask=own, other=0.0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    for at in tl.range(start, end, BLOCK, num_stages=STAGES):
        inside = at + step < end
        source = (page.to(tl.int64) * PAGE_ROWS + step % PAGE) * KV_ROW + head * DIM
        page = tl.load(table + (at + BLOCK) // PAGE + step // PAGE, mask=at + BLOCK + step < end, other=0)
        key = fetch(keys, source, column, inside, DIM, False)
        value = fetch(values, source, column, inside, DIM, False)
        score = tl.dot(q, tl.trans(key), input_precision=PRECISION) * scale
        visible = inside & (at + step >= floor) if WINDOW else inside
        score = tl.where(visible[None, :], score, float("-inf"))
        best, weight, total = take_in(score, value, best, weight, total, False, PRECISION)
    if parts == 1:
        tl.store(out + place, total / weight[:, None], mask=own)
    else:
        shares, peaks = partial + head * GROUP * DIM, stats + head * GROUP * 2
        target, count = out + place, arrived + head
        _meet(
            best, weight, total, shares, peaks, target, count, first, parts,
            HEADS, GROUP, ROWS, NARROW, DIM, WIDE, JOINED, PRECISION,
        )  # fmt: skip


@triton.jit
def _meet(
    best,
    weight,
    total,
    shares,
    peaks,
    target,
    arrived,
    first,
    parts,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    NARROW: tl.constexpr,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    JOINED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Leave a split's results; the last of JOINED neighbours to arrive joins those, the last of these joins all."""
    KV_HEADS: tl.constexpr = HEADS // GROUP
    number = tl.program_id(1)
    row = tl.arange(0, ROWS)
    own = (row < GROUP)[:, None] & (tl.arange(0, WIDE) < DIM)[None, :]
    leader = first + (number - first) // JOINED * JOINED
    near = tl.minimum(parts - (leader - first), JOINED)
    _leave(best, weight, total, shares, peaks, number, HEADS, GROUP, ROWS, DIM, WIDE)
    if tl.atomic_add(arrived + leader * (2 * KV_HEADS), 1, sem="acq_rel") == near - 1:
        tl.store(arrived + leader * (2 * KV_HEADS), 0)
        best, weight, total = _join(
            shares, peaks, leader, near, 1, HEADS, GROUP, ROWS, NARROW, DIM, WIDE, JOINED, PRECISION
        )
        if parts <= JOINED:
            tl.store(target, total / weight[:, None], mask=own)
        else:
            tl.debug_barrier()
            _leave(best, weight, total, shares, peaks, leader, HEADS, GROUP, ROWS, DIM, WIDE)
            far = tl.cdiv(parts, JOINED)
            if tl.atomic_add(arrived + first * (2 * KV_HEADS) + KV_HEADS, 1, sem="acq_rel") == far - 1:
                tl.store(arrived + first * (2 * KV_HEADS) + KV_HEADS, 0)
                best, weight, total = _join(
                    shares, peaks, first, far, JOINED, HEADS, GROUP, ROWS, NARROW, DIM, WIDE, JOINED, PRECISION
                )
                tl.store(target, total / weight[:, None], mask=own)


@triton.jit
def _leave(
    best,
    weight,
    total,
    shares,
    peaks,
    number,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Write a running softmax where the split `number` has its room, for another program to read."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    place = number * HEADS + row
    tl.store(
        shares + place[:, None] * DIM + column[None, :], total, mask=(row < GROUP)[:, None] & (column < DIM)[None, :]
    )
    tl.store(peaks + place * 2, best, mask=row < GROUP)
    tl.store(peaks + place * 2 + 1, weight, mask=row < GROUP)
    tl.debug_barrier()


@triton.jit
def _join(
    shares,
    peaks,
    first,
    count,
    stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    NARROW: tl.constexpr,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    JOINED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Join `count` results that lie `stride` splits apart, in their order, as attention over them: JOINED of them at a
    time are NARROW lines each, of which a row sees its own."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    line = tl.arange(0, JOINED * NARROW)
    best = tl.where(row < GROUP, float("-inf"), 0.0)
    weight = tl.where(row < GROUP, 0.0, 1.0)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    for at in tl.range(0, count, JOINED, num_stages=2):
        real = (at + line // NARROW < count) & (line % NARROW < GROUP)
        source = (first + (at + line // NARROW) * stride) * HEADS + line % NARROW
        peak = tl.load(peaks + source * 2, mask=real, other=float("-inf"), cache_modifier=".cg")
        heavy = tl.load(peaks + source * 2 + 1, mask=real, other=0.0, cache_modifier=".cg")
        summed = fetch(shares, source * DIM, column, real, DIM, False)
        score = tl.where(row[:, None] == (line % NARROW)[None, :], peak[None, :], float("-inf"))
        better = tl.maximum(best, tl.max(score, axis=1))
        kept = tl.exp2(best - better)
        share = tl.exp2(score - better[:, None])
        weight = weight * kept + tl.sum(share * heavy[None, :], axis=1)
        total = tl.dot(share, summed, total * kept[:, None], input_precision=PRECISION)
        best = better
    return best, weight, total
