"""Attention of prompt chunks on CUDA: one launch for all chunks of a step, over the paged cache, causal.

A program takes a block of queries of one chunk with all the query heads of one KV head as rows of one matrix (GQA
packing), and walks the context, the chunk's own part included, which is in the cache already. A list of blocks is made
on the device once a step; chunks may have any earlier context. Called by kernel.py only.
"""

import triton
import triton.language as tl

from lorafleet_engine.kernels.attention.online import fetch, take_in

RECORD = 4
"""Ints of a block in the list: first row of the query, queries, position of the first, where the pages begin."""


@triton.jit(do_not_specialize=["count", "before"])
def list_blocks(
    starts,
    counts,
    table_starts,
    blocks,
    count,
    before,
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


@triton.jit
def attend_blocks(
    query,
    keys,
    values,
    pages,
    blocks,
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
    RECORD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    KV_ROW: tl.constexpr = HEADS // GROUP * DIM
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
    page = tl.load(table + begin // PAGE + step // PAGE, mask=begin + step < end, other=0)
    for at in tl.range(begin, seen, BLOCK, num_stages=STAGES):
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
        best, weight, total = take_in(score, value, best, weight, total, WINDOW > 0, PRECISION)
    tl.store(out + place, total / weight[:, None], mask=own)
