"""A step's plan as one array of int32, so that one host-to-device copy carries all of it.

Used by runner.py. The layout depends on a `StepShape` only: for equal shapes every field lies at the same place, which
is what lets a captured graph read the next step's numbers. Padding reads zeros and writes to the scratch page.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.memory.geometry import ZERO_PAGE, PoolGeometry
from lorafleet_engine.scheduler.sequence import StepPlan

Ints = npt.NDArray[np.int32]

BASE_OWNER = -1
"""Owner of tokens without an adapter."""
PAD_OWNER = -2
"""Owner of padding rows of rank: no token's."""
ZERO_ROW = 0
"""The row of the row table whose granules are zeros everywhere."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step, exact or rounded up: `tokens` in all, of them `decodes` single ones with up to `pages` pages of
    context each; `samples` tokens whose logits are wanted; `rows` of rank; `chunks` is (tokens, context) of each prompt
    chunk."""

    tokens: int
    decodes: int
    pages: int
    samples: int
    rows: int
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def fields(self) -> dict[str, int]:
        """Length of each field, in order."""
        return {
            "tokens": self.tokens,
            "positions": self.tokens,
            "slots": self.tokens,
            "owners": self.tokens,
            "lengths": self.decodes,
            "tables": self.decodes * self.pages,
            "samples": self.samples,
            "rows": self.rows,
            "row_owners": self.rows,
            "chunk_index": sum(context for _, context in self.chunks),
        }

    @property
    def size(self) -> int:
        """Length of the packed array."""
        return sum(self.fields.values())

    def offsets(self) -> dict[str, slice]:
        """Where each field lies."""
        ends = list(accumulate(self.fields.values()))
        return {name: slice(end - length, end) for (name, length), end in zip(self.fields.items(), ends, strict=True)}


def exact_shape(plan: StepPlan) -> StepShape:
    """The shape without any padding."""
    singles, chunks = plan.works[: plan.decodes], plan.works[plan.decodes :]
    return StepShape(
        tokens=plan.tokens,
        decodes=plan.decodes,
        pages=max((-(-(work.start + 1) // KV_BLOCK_TOKENS) for work in singles), default=0),
        samples=sum(work.samples for work in plan.works),
        rows=plan.rank_sum,
        chunks=tuple((work.count, work.start + work.count) for work in chunks),
    )


def pack(plan: StepPlan, shape: StepShape, geometry: PoolGeometry, out: Ints) -> None:
    """Write the plan into out[: shape.size]; `shape` is at least the plan's exact shape."""
    fields = {name: out[where] for name, where in shape.offsets().items()}
    fields["tokens"].fill(0)
    fields["positions"].fill(0)
    fields["slots"].fill(0)
    fields["owners"].fill(BASE_OWNER)
    fields["lengths"].fill(1)
    fields["tables"].fill(ZERO_PAGE)
    fields["samples"].fill(0)
    fields["rows"].fill(ZERO_ROW)
    fields["row_owners"].fill(PAD_OWNER)
    _pack_tokens(plan, shape, geometry, fields)
    at = 0
    for adapter in plan.adapters:
        fields["rows"][at : at + adapter.rank] = adapter.rows
        fields["row_owners"][at : at + adapter.rank] = adapter.owner
        at += adapter.rank


def _pack_tokens(plan: StepPlan, shape: StepShape, geometry: PoolGeometry, fields: dict[str, Ints]) -> None:
    tables = fields["tables"].reshape(shape.decodes, shape.pages)
    at, context_at, sampled = 0, 0, 0
    for number, work in enumerate(plan.works):
        sequence, end = work.sequence, work.start + work.count
        here = slice(at, at + work.count)
        fields["tokens"][here] = sequence.tokens[work.start : end]
        fields["positions"][here] = np.arange(work.start, end)
        if sequence.adapter is not None:
            fields["owners"][here] = sequence.adapter.owner
        if number < plan.decodes:
            pages = -(-end // KV_BLOCK_TOKENS)
            fields["lengths"][number] = end
            tables[number, :pages] = sequence.pages[:pages]
            fields["slots"][at] = cache_row(sequence.pages, work.start, geometry)
        else:
            rows = cache_rows(sequence.pages, end, geometry)
            fields["slots"][here] = rows[work.start :]
            fields["chunk_index"][context_at : context_at + end] = rows
            context_at += end
        at += work.count
        if work.samples:
            fields["samples"][sampled] = at - 1
            sampled += 1


def cache_row(pages: list[int], position: int, geometry: PoolGeometry) -> int:
    """Row of the cache (in a layer's view) of one token of a sequence."""
    return pages[position // KV_BLOCK_TOKENS] * geometry.page_rows + position % KV_BLOCK_TOKENS


def cache_rows(pages: list[int], tokens: int, geometry: PoolGeometry) -> Ints:
    """Rows of the cache (in a layer's view) of a sequence's first `tokens` tokens."""
    used = np.asarray(pages[: -(-tokens // KV_BLOCK_TOKENS)], dtype=np.int32)
    rows: Ints = np.add(used[:, None] * geometry.page_rows, np.arange(KV_BLOCK_TOKENS), dtype=np.int32)
    return rows.reshape(-1)[:tokens]
