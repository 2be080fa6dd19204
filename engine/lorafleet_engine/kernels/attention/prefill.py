"""Attention of prompt chunks on CUDA: one launch for all chunks of a step, over the paged cache, causal.

A program takes a block of queries of one chunk with all the query heads of one KV head as rows of one matrix (GQA
packing), and walks the context, the chunk's own part included, which is in the cache already. A list of blocks is made
on the device once a step; chunks may have any earlier context. Where blocks are few, SPLITS programs share the context
of each, as far as it has LEAST tokens for one; the last to arrive joins what they leave, in their order, whatever the
order of arrival. Called by kernel.py only.
"""

import triton
import triton.language as tl

from lorafleet_engine.kernels.attention.online import fetch, take_in

RECORD = 4
"""Ints of a block in the list: first row of the query, queries, position of the first, where the pages begin."""


@triton.jit(do_not_specialize=["count", "before", "counters"])
def list_blocks(
    starts,
    counts,
    table_starts,
    blocks,
    arrived,
    count,
    before,
    counters,
    QUERIES: tl.constexpr,
    PADDED: tl.constexpr,
    RECORD: tl.constexpr,
):
    """Cut chunks into blocks of up to QUERIES queries, in each chunk the longest context first."""
    chunk = tl.arange(0, PADDED)
    real = chunk < count
    tokens = tl.load(counts + chunk, mask=real, other=0)
    start = tl.load(starts + chunk, mask=real, other=0)
    table = tl.load(table_starts + before + chunk, mask=real, other=0)
    row = before + tl.cumsum(tokens, axis=0) - tokens
    parts = tl.cdiv(tokens, QUERIES)
    ends = tl.cumsum(parts, axis=0)
    for part in range(tl.program_id(0), tl.max(parts, axis=0), tl.num_programs(0)):
        record = blocks + (ends - 1 - part) * RECORD
        used = part < parts
        tl.store(record, row + part * QUERIES, mask=used)
        tl.store(record + 1, tl.minimum(tokens - part * QUERIES, QUERIES), mask=used)
        tl.store(record + 2, start + part * QUERIES, mask=used)
        tl.store(record + 3, table, mask=used)
    if tl.program_id(0) == 0:
        for at in range(0, counters, PADDED):
            tl.store(arrived + at + chunk, 0, mask=at + chunk < counters)


@triton.jit
def attend_blocks(
    query,
    keys,
    values,
    pages,
    blocks,
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
    WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST: tl.constexpr,
    RECORD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    KV_ROW: tl.constexpr = HEADS // GROUP * DIM
    BLIND: tl.constexpr = WINDOW > 0 or SPLITS > 1
    record = blocks + tl.program_id(0) * RECORD
    head = tl.program_id(1)
    token = tl.load(record).to(tl.int64)
    queries = tl.load(record + 1)
    position = tl.load(record + 2)
    table = pages + tl.load(record + 3)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    step = tl.arange(0, BLOCK)
    own = (row // GROUP < queries)[:, None] & (column < DIM)[None, :]
    place = ((token + row // GROUP) * HEADS + head * GROUP + row % GROUP)[:, None] * DIM + column[None, :]
    q = tl.load(query + place, mask=own, other=0.0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    end = position + queries
    begin = tl.maximum(position + 1 - WINDOW, 0) // BLOCK * BLOCK if WINDOW else 0
    seen = begin if WINDOW else (position + 1) // BLOCK * BLOCK
    past, parts = seen, 1
    if SPLITS > 1:
        wanted = tl.maximum(tl.minimum(tl.cdiv(seen - begin, LEAST), SPLITS), 1)
        share = tl.cdiv(tl.cdiv(seen - begin, wanted), BLOCK) * BLOCK
        parts = tl.maximum(tl.cdiv(seen - begin, tl.maximum(share, 1)), 1)
        part = tl.program_id(2)
        if part >= parts:
            return
        begin += part * share
        past = tl.minimum(begin + share, seen)
        end = tl.where(part == parts - 1, end, seen)
    page = tl.load(table + begin // PAGE + step // PAGE, mask=begin + step < end, other=0)
    for at in tl.range(begin, past, BLOCK, num_stages=STAGES):
        source = (page.to(tl.int64) * PAGE_ROWS + step % PAGE) * KV_ROW + head * DIM
        page = tl.load(table + (at + BLOCK) // PAGE + step // PAGE, mask=at + BLOCK + step < end, other=0)
        key = fetch(keys, source, column, None, DIM, True)
        value = fetch(values, source, column, None, DIM, True)
        score = tl.dot(q, tl.trans(key), input_precision=PRECISION) * scale
        best, weight, total = take_in(score, value, best, weight, total, False, PRECISION)
    for at in tl.range(seen, end, BLOCK, num_stages=MASKED):
        inside = at + step < end
        source = (page.to(tl.int64) * PAGE_ROWS + step % PAGE) * KV_ROW + head * DIM
        page = tl.load(table + (at + BLOCK) // PAGE + step // PAGE, mask=at + BLOCK + step < end, other=0)
        key = fetch(keys, source, column, inside, DIM, False)
        value = fetch(values, source, column, inside, DIM, False)
        score = tl.dot(q, tl.trans(key), input_precision=PRECISION) * scale
        own_place = position + row // GROUP
        visible = (at + step)[None, :] <= own_place[:, None]
        if WINDOW:
            visible &= (at + step)[None, :] > (own_place - WINDOW)[:, None]
        score = tl.where(visible, score, float("-inf"))
        best, weight, total = take_in(score, value, best, weight, total, BLIND, PRECISION)
    if SPLITS == 1:  # noqa: SIM114  (decided by the compiler)
        tl.store(out + place, total / weight[:, None], mask=own)
    elif parts == 1:
        tl.store(out + place, total / weight[:, None], mask=own)
    else:
        number = tl.program_id(0) * tl.num_programs(1) + head
        mine = (number * SPLITS + tl.program_id(2)) * ROWS + row
        tl.store(partial + mine[:, None] * WIDE + column[None, :], total)
        tl.store(stats + mine * 2, best)
        tl.store(stats + mine * 2 + 1, weight)
        tl.debug_barrier()
        if tl.atomic_add(arrived + number, 1, sem="acq_rel") == parts - 1:
            tl.store(arrived + number, 0)
            total, weight = _join(partial, stats, number * SPLITS, parts, ROWS, WIDE)
            tl.store(out + place, total / weight[:, None], mask=own)


@triton.jit
def _join(partial, stats, first, parts, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """The sums and weights of a block of queries over all its splits, the first of which has seen something."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    for part in range(parts):
        one = (first + part) * ROWS + row
        peak = tl.load(stats + one * 2, cache_modifier=".cg")
        better = tl.maximum(best, peak)
        held = tl.where(better == float("-inf"), 0.0, better)
        kept, share = tl.exp2(best - held), tl.exp2(peak - held)
        weight = weight * kept + tl.load(stats + one * 2 + 1, cache_modifier=".cg") * share
        summed = tl.load(partial + one[:, None] * WIDE + column[None, :], cache_modifier=".cg")
        total = total * kept[:, None] + summed * share[:, None]
        best = better
    return total, weight
