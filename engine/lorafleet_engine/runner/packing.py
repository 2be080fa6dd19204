"""A step's plan as one array of int32, so that one host-to-device copy carries all of it.

Used by runner.py. The layout depends on a `StepShape` only: for equal shapes every field lies at the same place, which
is what lets a captured graph read the next step's numbers. Padding reads zeros and writes to the scratch page.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.memory.geometry import ZERO_PAGE, PoolGeometry, pages_for_tokens
from lorafleet_engine.runner.lora_work import NO_LISTS, PAIR_LISTS, SEGMENT_LISTS, ListSizes, LoraWork
from lorafleet_engine.scheduler.sequence import StepPlan, Work

Ints = npt.NDArray[np.int32]

BASE_OWNER = -1
"""Owner of tokens without an adapter."""
PAD_OWNER = -2
"""Owner of padding rows of rank: no token's."""
ALIGNMENT = 4
"""Ints: every field starts at a multiple of 16 bytes, whatever the shape, so that kernels need one version only."""
ZERO_ROW = 0
"""The row of the row table whose granules are zeros everywhere."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step, exact or rounded up: `tokens` in all, of them `decodes` single ones with up to `pages` pages of
    context each; `samples` tokens whose logits are wanted; `rows` of rank (whole tiles where there are `lists`);
    `chunks` is (tokens, context) of each prompt chunk."""

    tokens: int
    decodes: int
    pages: int
    samples: int
    rows: int
    chunks: tuple[tuple[int, int], ...] = ()
    lists: ListSizes = NO_LISTS

    @property
    def fields(self) -> dict[str, int]:
        """Length of each field, in order."""
        tiled = self.lists.segments > 0
        return {
            "tokens": self.tokens,
            "positions": self.tokens,
            "slots": self.tokens,
            "owners": self.tokens,
            "lengths": self.decodes,
            "tables": self.decodes * self.pages + sum(pages_for_tokens(context) for _, context in self.chunks),
            "table_starts": self.decodes + len(self.chunks),
            "chunk_starts": len(self.chunks),
            "chunk_counts": len(self.chunks),
            "samples": self.samples,
            "rows": self.rows,
            "row_owners": 0 if tiled else self.rows,
            "order": self.tokens if tiled else 0,
            "counts": 2 if tiled else 0,
            **dict.fromkeys(SEGMENT_LISTS, self.lists.segments),
            **dict.fromkeys(PAIR_LISTS, self.lists.pairs),
        }

    @property
    def size(self) -> int:
        """Length of the packed array."""
        return sum(map(_aligned, self.fields.values()))

    def offsets(self) -> dict[str, slice]:
        """Where each field lies."""
        fields = self.fields
        starts = accumulate(map(_aligned, fields.values()), initial=0)
        return {
            name: slice(start, start + length) for (name, length), start in zip(fields.items(), starts, strict=False)
        }


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def exact_shape(plan: StepPlan, work: LoraWork | None) -> StepShape:
    """The shape without any padding; `work` where kernels/lora works on tiles."""
    singles, chunks = plan.works[: plan.decodes], plan.works[plan.decodes :]
    return StepShape(
        tokens=plan.tokens,
        decodes=plan.decodes,
        pages=max((-(-(single.start + 1) // KV_BLOCK_TOKENS) for single in singles), default=0),
        samples=sum(one.samples for one in plan.works),
        rows=plan.rank_sum if work is None else len(work.lists["rows"]),
        chunks=tuple((chunk.count, chunk.start + chunk.count) for chunk in chunks),
        lists=NO_LISTS if work is None else work.sizes,
    )


def pack(plan: StepPlan, work: LoraWork | None, shape: StepShape, geometry: PoolGeometry, out: Ints) -> None:
    """Write the plan into out[: shape.size]; `shape` is at least the plan's exact shape."""
    fields = {name: out[where] for name, where in shape.offsets().items()}
    fields["tokens"].fill(0)
    fields["positions"].fill(0)
    fields["slots"].fill(0)
    fields["owners"].fill(BASE_OWNER)
    fields["lengths"].fill(1)
    fields["tables"].fill(ZERO_PAGE)
    fields["table_starts"][: shape.decodes] = np.arange(shape.decodes) * shape.pages
    fields["samples"].fill(0)
    fields["rows"].fill(ZERO_ROW)
    fields["row_owners"].fill(PAD_OWNER)
    _pack_decodes(plan.works[: plan.decodes], shape, geometry, fields)
    _pack_chunks(plan.works[plan.decodes :], shape, geometry, fields)
    ends = accumulate(one.count for one in plan.works)
    samples = [end - 1 for end, one in zip(ends, plan.works, strict=True) if one.samples]
    fields["samples"][: len(samples)] = samples
    if work is not None:
        for name, values in work.lists.items():
            fields[name][: len(values)] = values
        return
    at = 0
    for adapter in plan.adapters:
        fields["rows"][at : at + adapter.rank] = adapter.rows
        fields["row_owners"][at : at + adapter.rank] = adapter.owner
        at += adapter.rank


def _pack_decodes(works: tuple[Work, ...], shape: StepShape, geometry: PoolGeometry, fields: dict[str, Ints]) -> None:
    """One token each: the hot path, so list comprehensions and one array a field."""
    count = len(works)
    if not count:
        return
    starts = [work.start for work in works]
    fields["tokens"][:count] = [work.sequence.tokens[work.start] for work in works]
    fields["positions"][:count] = starts
    places = np.array(starts, dtype=np.int32)
    fields["lengths"][:count] = places + 1
    blocks = [work.sequence.pages[work.start // KV_BLOCK_TOKENS] for work in works]
    fields["slots"][:count] = np.array(blocks) * geometry.page_rows + places % KV_BLOCK_TOKENS
    fields["owners"][:count] = [_owner(work) for work in works]
    tables = fields["tables"][: shape.decodes * shape.pages].reshape(shape.decodes, shape.pages)
    for number, work in enumerate(works):
        pages = work.start // KV_BLOCK_TOKENS + 1
        tables[number, :pages] = work.sequence.pages[:pages]


def _pack_chunks(works: tuple[Work, ...], shape: StepShape, geometry: PoolGeometry, fields: dict[str, Ints]) -> None:
    """Chunks of prompts, whose tokens and page tables come after those of the decodes."""
    at, table = shape.decodes, shape.decodes * shape.pages
    for number, work in enumerate(works):
        sequence, end = work.sequence, work.start + work.count
        here = slice(at, at + work.count)
        positions = np.arange(work.start, end, dtype=np.int32)
        pages = np.asarray(sequence.pages[: pages_for_tokens(end)], dtype=np.int32)
        fields["tokens"][here] = sequence.tokens[work.start : end]
        fields["positions"][here] = positions
        fields["slots"][here] = pages[positions // KV_BLOCK_TOKENS] * geometry.page_rows + positions % KV_BLOCK_TOKENS
        fields["owners"][here] = _owner(work)
        fields["tables"][table : table + len(pages)] = pages
        fields["table_starts"][shape.decodes + number] = table
        fields["chunk_starts"][number] = work.start
        fields["chunk_counts"][number] = work.count
        table += len(pages)
        at += work.count


def _owner(work: Work) -> int:
    return BASE_OWNER if work.sequence.adapter is None else work.sequence.adapter.owner
