"""Attention on CUDA: a step's lists of work are made once, then each layer is one launch for its single tokens and one
for its chunks of prompts. Called by this op only."""

import torch
import triton

from lorafleet_engine.kernels.attention import decode, prefill
from lorafleet_engine.kernels.attention.contexts import StepContexts
from lorafleet_engine.kernels.attention.listed import DecodeTile, ListedWork, PrefillTile, Spread
from lorafleet_engine.kernels.attention.online import LOG2_E
from lorafleet_engine.kernels.rope.reference import HeadNorms, NewTokens

LISTERS = 8
"""Programs that write a list."""
FEW = 8
"""Sequences below which a context is cut finely, because nothing else fills the device."""
MANY, CROWD = 64, 66
"""Sequences from which on smaller programs are faster, because two of them share a multiprocessor, which have room for
six blocks under way; and from which on more than two do."""
CHUNK_SPLITS = ((64, 8), (192, 3))
"""Tokens of chunks up to which, and programs that share a block's context: so few blocks leave most of the device
waiting for memory."""
LEAST_LINES = 16
"""What a matrix product sums over at least."""
FEW_LISTED = 32
"""Sequences up to which a list is made in a quarter of the time."""
MOST_LISTED = 1024
"""Sequences of a step, single tokens or chunks, at most: the lists' kernels hold all their numbers at once."""


def decode_tile(dtype: torch.dtype, sequences: int) -> DecodeTile:
    """The tile for so many single tokens; see docs/benchmarks for the figures."""
    if dtype == torch.float32:
        return DecodeTile(32, 4, 2, 8)
    if sequences >= MANY:
        return DecodeTile(32, 4, 6, 8) if sequences <= CROWD else DecodeTile(32, 2, 4, 8)
    return DecodeTile(64, 4, 3, 4 if sequences < FEW else 8)


def prefill_tile(dtype: torch.dtype, tokens: int) -> PrefillTile:
    """The tile for chunks of so many tokens in all."""
    splits = next((splits for most, splits in CHUNK_SPLITS if tokens <= most), 1)
    return PrefillTile(32, 32, 8, 1, 1, splits) if dtype == torch.float32 else PrefillTile(64, 64, 4, 3, 2, splits)


def spread_of(sequences: int) -> Spread:
    """How many splits so many single tokens get, whatever their contexts: where sequences alone fill the device, only
    those far above the mean are cut."""
    return Spread(32, 64) if sequences < FEW else Spread(max(sequences // 2, 50), 256)


def list_work(contexts: StepContexts, dtype: torch.dtype) -> ListedWork:
    """List the step's splits and blocks, once for all layers; `dtype` is that of query and cache."""
    decodes, tokens = contexts.decodes, sum(tokens for tokens, _ in contexts.chunks)
    return listed(contexts, decode_tile(dtype, decodes), prefill_tile(dtype, tokens), spread_of(decodes))


def listed(contexts: StepContexts, tile: DecodeTile, chunk_tile: PrefillTile, spread: Spread) -> ListedWork:
    """The same with these tiles."""
    heads, device, decodes = contexts.heads, contexts.pages.device, contexts.decodes
    if max(decodes, len(contexts.chunks)) > MOST_LISTED:
        raise ValueError(f"a step has {decodes} single tokens and {len(contexts.chunks)} chunks; {MOST_LISTED} at most")
    capacity = decodes + spread.more if decodes else 0
    queries = chunk_tile.rows // contexts.group
    count = sum(max(-(-tokens // queries), 1) for tokens, _ in contexts.chunks)
    ints = [capacity * decode.RECORD, count * prefill.RECORD, capacity * 2 * heads.kv]
    splits, blocks, arrived = torch.empty(sum(ints), device=device, dtype=torch.int32).split(ints)
    floats = [capacity * heads.query * heads.dim, capacity * heads.query * 2]
    partial, stats = torch.empty(sum(floats), device=device, dtype=torch.float32).split(floats)
    shared = _shared(contexts, chunk_tile, count)
    work = ListedWork(contexts, splits, arrived, partial, stats, blocks, tile, chunk_tile, shared)
    if decodes:
        _list_splits(work, spread)
    if contexts.chunks:
        blocks.zero_()  # where there are fewer: such a block has no queries
        _list_blocks(work, queries)
    return work


def _shared(contexts: StepContexts, tile: PrefillTile, blocks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Room for what programs that share a block's context leave: none where each has one to itself."""
    device, programs = contexts.pages.device, blocks * contexts.heads.kv if tile.splits > 1 else 0
    lines = programs * tile.splits * tile.rows
    floats = [lines * triton.next_power_of_2(contexts.heads.dim), lines * 2]
    partial, stats = torch.empty(sum(floats), device=device, dtype=torch.float32).split(floats)
    return torch.empty(programs, device=device, dtype=torch.int32), partial, stats


def _list_splits(work: ListedWork, spread: Spread) -> None:
    contexts = work.contexts
    decode.list_splits[(LISTERS,)](
        contexts.lengths,
        contexts.table_starts,
        contexts.pages,
        work.splits,
        work.arrived,
        contexts.decodes,
        spread.more,
        spread.least,
        contexts.decodes + spread.more,
        KV_HEADS=contexts.heads.kv,
        PADDED=FEW_LISTED if contexts.decodes <= FEW_LISTED else MOST_LISTED,
        WINDOW=contexts.window or 0,
        PAGE=contexts.layout.block,
        BLOCK=work.tile.block,
        RECORD=decode.RECORD,
    )


def _list_blocks(work: ListedWork, queries: int) -> None:
    contexts = work.contexts
    prefill.list_blocks[(LISTERS,)](
        contexts.chunk_starts,
        contexts.chunk_counts,
        contexts.table_starts,
        work.blocks,
        work.shared[0],
        len(contexts.chunks),
        contexts.decodes,
        work.shared[0].shape[0],
        QUERIES=queries,
        PADDED=MOST_LISTED,
        RECORD=prefill.RECORD,
    )


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, work: ListedWork) -> torch.Tensor:
    """See the op; query, keys and values are contiguous."""
    out = torch.empty_like(query)
    attend_into(out, query, keys, values, work)
    return out


def attend_into(
    out: torch.Tensor, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, work: ListedWork
) -> None:
    """Fill out [T, heads, dim]."""
    if work.contexts.decodes:
        attend_decodes(out, query, keys, values, work)
    if work.contexts.chunks:
        attend_chunks(out, query, keys, values, work)


def attend_decodes(
    out: torch.Tensor, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, work: ListedWork
) -> None:
    """Fill the rows of the single tokens."""
    unused = (query, query, query, query, query, 0, 0.0)
    _attend_splits(out, (query, keys, values), work, unused, {"RAW": False, "NORM": False})


def rotate_and_attend(
    qkv: torch.Tensor,
    new: NewTokens,
    cache: tuple[torch.Tensor, torch.Tensor],
    norms: HeadNorms | None,
    work: ListedWork,
) -> torch.Tensor:
    """Single tokens only: what rotate_and_store and attend do, in one launch."""
    heads = work.contexts.heads
    out = qkv.new_empty(qkv.shape[0], heads.query, heads.dim)
    query_norm, key_norm, eps = (qkv, qkv, 0.0) if norms is None else (norms.query, norms.key, norms.eps)
    told = (new.cos, new.sin, new.slots, query_norm, key_norm, new.cos.stride(0), eps)
    _attend_splits(out, (qkv, *cache), work, told, {"RAW": True, "NORM": norms is not None})
    return out


def _attend_splits(
    out: torch.Tensor,
    read: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    work: ListedWork,
    new: tuple[torch.Tensor | float, ...],
    form: dict[str, bool],
) -> None:
    heads, tile = work.contexts.heads, work.tile
    decode.attend_splits[(heads.kv, work.splits.shape[0] // decode.RECORD)](
        *read,
        work.contexts.pages,
        work.splits,
        work.arrived,
        work.partial,
        work.stats,
        out,
        *new,
        heads.dim**-0.5 * LOG2_E,
        ROWS=max(triton.next_power_of_2(work.contexts.group), 16),
        NARROW=triton.next_power_of_2(work.contexts.group),
        BLOCK=tile.block,
        JOINED=max(tile.joined, LEAST_LINES // triton.next_power_of_2(work.contexts.group)),
        STAGES=tile.stages,
        RECORD=decode.RECORD,
        num_warps=tile.warps,
        **form,
        **_model(out, work),
    )


def attend_chunks(
    out: torch.Tensor, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, work: ListedWork
) -> None:
    """Fill the rows of the chunks of prompts."""
    heads, tile = work.contexts.heads, work.chunk_tile
    prefill.attend_blocks[(work.blocks.shape[0] // prefill.RECORD, heads.kv, tile.splits)](
        query,
        keys,
        values,
        work.contexts.pages,
        work.blocks,
        *work.shared,
        out,
        heads.dim**-0.5 * LOG2_E,
        ROWS=tile.rows,
        BLOCK=tile.block,
        STAGES=tile.stages,
        MASKED=tile.masked,
        SPLITS=tile.splits,
        LEAST=tile.least,
        RECORD=prefill.RECORD,
        num_warps=tile.warps,
        **_model(query, work),
    )


def _model(query: torch.Tensor, work: ListedWork) -> dict[str, int | str]:
    """What is constant for a model."""
    heads, layout = work.contexts.heads, work.contexts.layout
    return {
        "HEADS": heads.query,
        "GROUP": work.contexts.group,
        "DIM": heads.dim,
        "WIDE": triton.next_power_of_2(heads.dim),
        "WINDOW": work.contexts.window or 0,
        "PAGE": layout.block,
        "PAGE_ROWS": layout.page_rows,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }
