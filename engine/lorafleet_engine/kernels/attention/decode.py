"""Decode attention on CUDA: contexts are cut into splits, a program for each split of one KV head, joined by the last.

The query heads that share a KV head are the rows of one matrix product (GQA packing), so every key is read once.
A list of splits is made on the device once a step from the true lengths: how many programs there are follows the number
of sequences alone, so that one graph serves contexts of any length. The last program of a sequence's splits to arrive
joins them in their order, whatever the order of arrival: results are deterministic. Called by kernel.py only.
"""

import triton
import triton.language as tl

from lorafleet_engine.kernels.attention.online import fetch, take_in

RECORD = 8
"""Ints of a split in the list: sequence (-1: none), first token, end, first of the sequence's splits, how many it has,
where its pages begin."""


@triton.jit(do_not_specialize=["count", "spread", "least", "capacity"])
def list_splits(
    lengths,
    table_starts,
    splits,
    arrived,
    count,
    spread,
    least,
    capacity,
    KV_HEADS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    RECORD: tl.constexpr,
):
    """Cut contexts into equal splits of at least `least` tokens, at most `spread` more splits than sequences."""
    sequence = tl.arange(0, PADDED)
    real = sequence < count
    length = tl.load(lengths + sequence, mask=real, other=0)
    table = tl.load(table_starts + sequence, mask=real, other=0)
    most = tl.maximum(tl.cdiv(tl.sum(length, axis=0), spread), least)
    share = tl.cdiv(tl.cdiv(length, tl.maximum(tl.cdiv(length, most), 1)), BLOCK) * BLOCK
    parts = tl.cdiv(length, tl.maximum(share, 1))
    first = tl.cumsum(parts, axis=0) - parts
    for part in range(tl.program_id(0), tl.max(parts, axis=0), tl.num_programs(0)):
        record = splits + (first + part) * RECORD
        used = part < parts
        tl.store(record, sequence, mask=used)
        tl.store(record + 1, part * share, mask=used)
        tl.store(record + 2, tl.minimum(part * share + share, length), mask=used)
        tl.store(record + 3, first, mask=used)
        tl.store(record + 4, parts, mask=used)
        tl.store(record + 5, table, mask=used)
    if tl.program_id(0) == 0:
        for at in range(tl.sum(parts, axis=0), capacity, PADDED):
            tl.store(splits + (at + sequence) * RECORD, -1, mask=at + sequence < capacity)
        for head in range(KV_HEADS):
            tl.store(arrived + sequence * KV_HEADS + head, 0, mask=real)


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
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    PAGE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    JOINED: tl.constexpr,
    STAGES: tl.constexpr,
    RECORD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    KV_HEADS: tl.constexpr = HEADS // GROUP
    head = tl.program_id(0)
    number = tl.program_id(1)
    record = splits + number * RECORD
    sequence = tl.load(record)
    start = tl.load(record + 1)
    end = tl.load(record + 2)
    first = tl.load(record + 3)
    parts = tl.load(record + 4)
    table = pages + tl.load(record + 5)
    if sequence < 0:
        return
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    step = tl.arange(0, BLOCK)
    own = (row < GROUP)[:, None] & (column < DIM)[None, :]
    place = (sequence.to(tl.int64) * HEADS + head * GROUP + row)[:, None] * DIM + column[None, :]
    q = tl.load(query + place, mask=own, other=0.0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    page = tl.load(table + start // PAGE + step // PAGE, mask=start + step < end, other=0)
    for at in tl.range(start, end, BLOCK, num_stages=STAGES):
        inside = at + step < end
        source = (page.to(tl.int64) * PAGE_ROWS + step % PAGE) * (KV_HEADS * DIM) + head * DIM
        page = tl.load(table + (at + BLOCK) // PAGE + step // PAGE, mask=at + BLOCK + step < end, other=0)
        key = fetch(keys, source, column, inside, DIM, False)
        value = fetch(values, source, column, inside, DIM, False)
        score = tl.dot(q, tl.trans(key), input_precision=PRECISION) * scale
        score = tl.where(inside[None, :], score, float("-inf"))
        best, weight, total = take_in(score, value, best, weight, total, PRECISION)
    if parts == 1:
        tl.store(out + place, total / weight[:, None], mask=own)
    else:
        part = (number * KV_HEADS + head) * GROUP + row
        tl.store(partial + part[:, None] * DIM + column[None, :], total, mask=own)
        tl.store(stats + part * 2, best, mask=row < GROUP)
        tl.store(stats + part * 2 + 1, weight, mask=row < GROUP)
        tl.debug_barrier()
        counter = arrived + sequence * KV_HEADS + head
        if tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1:
            tl.store(counter, 0)
            target = out + (sequence.to(tl.int64) * HEADS + head * GROUP) * DIM
            _join(partial, stats, target, first * KV_HEADS + head, parts, KV_HEADS, GROUP, DIM, WIDE, JOINED)


@triton.jit
def _join(
    partial,
    stats,
    target,
    first,
    parts,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    JOINED: tl.constexpr,
):
    """Sum the splits of one sequence and KV head in their order, JOINED at a time, as few rows as the group needs."""
    NARROW: tl.constexpr = 1 if GROUP == 1 else 2 if GROUP == 2 else 4 if GROUP <= 4 else 8 if GROUP <= 8 else 16
    ROWS: tl.constexpr = NARROW if GROUP <= 16 else 32 if GROUP <= 32 else 64
    part = tl.arange(0, JOINED)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    for at in range(0, parts, JOINED):
        real = (at + part < parts)[:, None] & (row < GROUP)[None, :]
        place = (first + (at + part) * KV_HEADS)[:, None] * GROUP + row[None, :]
        seen = tl.load(stats + place * 2, mask=real, other=float("-inf"), cache_modifier=".cg")
        best = tl.maximum(best, tl.max(seen, axis=0))
    best = tl.where(row < GROUP, best, 0.0)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    for at in tl.range(0, parts, JOINED, num_stages=3):
        real = (at + part < parts)[:, None] & (row < GROUP)[None, :]
        place = (first + (at + part) * KV_HEADS)[:, None] * GROUP + row[None, :]
        seen = tl.load(stats + place * 2, mask=real, other=float("-inf"), cache_modifier=".cg")
        heavy = tl.load(stats + place * 2 + 1, mask=real, other=0.0, cache_modifier=".cg")
        share = tl.exp2(seen - best[None, :])
        known = real[:, :, None] & (column < DIM)[None, None, :]
        source = partial + place[:, :, None] * DIM + column[None, None, :]
        summed = tl.load(source, mask=known, other=0.0, cache_modifier=".cg")
        weight += tl.sum(heavy * share, axis=0)
        total += tl.sum(summed * share[:, :, None], axis=0)
    own = (row < GROUP)[:, None] & (column < DIM)[None, :]
    tl.store(target + row[:, None] * DIM + column[None, :], total / weight[:, None], mask=own)
