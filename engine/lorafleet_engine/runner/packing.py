"""A step's plan as one array of int32, so that one host-to-device copy carries all of it.

Used by runner.py. The layout depends on a `StepShape` only: for equal shapes every field lies at the same place, which
is what lets a captured graph read the next step's numbers. Padding reads zeros and writes to the scratch page.
"""

from dataclasses import dataclass
from itertools import accumulate, chain, islice

import numpy as np
import numpy.typing as npt

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.memory.geometry import ZERO_PAGE, PoolGeometry, pages_for_tokens
from lorafleet_engine.runner.lora_work import NO_LISTS, PAIR_LISTS, SEGMENT_LISTS, ListSizes, LoraWork
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan, Work

Ints = npt.NDArray[np.int32]

BASE_OWNER = -1
"""Owner of tokens without an adapter."""
PAD_OWNER = -2
"""Owner of padding rows of rank: no token's."""
ALIGNMENT = 4
"""Ints: every field starts at a multiple of 16 bytes, whatever the shape, so that kernels need one version only."""
FIRST_TABLE = 1
"""Where page tables begin in their field: behind the zero page, which is the table of padding rows."""
ZERO_ROW = 0
"""The row of the row table whose granules are zeros everywhere."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step, exact or rounded up: `tokens` in all, first `decodes` single ones; `pages` of context
    listed for all works; `samples` tokens whose logits are wanted; `rows` of rank (whole tiles where there are
    `lists`); `chunks` is (tokens, context) of each prompt chunk. In a `mixed` step, rounded up for a graph, the first
    has the tokens of all and the others are (0, 0)."""

    tokens: int
    decodes: int
    pages: int
    samples: int
    rows: int
    chunks: tuple[tuple[int, int], ...] = ()
    lists: ListSizes = NO_LISTS
    mixed: bool = False

    @property
    def fields(self) -> dict[str, int]:
        """Length of each field, in order. Page tables come last: of those, a step is written and copied as far as it
        has any."""
        tiled = self.lists.segments > 0
        return {
            "tokens": self.tokens,
            "sources": self.tokens,
            "positions": self.tokens,
            "slots": self.tokens,
            "owners": self.tokens,
            "lengths": self.decodes,
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
            "tables": FIRST_TABLE + self.pages,
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
    chunks = plan.works[plan.decodes :]
    return StepShape(
        tokens=plan.tokens,
        decodes=plan.decodes,
        pages=sum(pages_for_tokens(one.start + one.count) for one in plan.works),
        samples=sum(one.samples for one in plan.works),
        rows=plan.rank_sum if work is None else len(work.lists["rows"]),
        chunks=tuple((chunk.count, chunk.start + chunk.count) for chunk in chunks),
        lists=NO_LISTS if work is None else work.sizes,
    )


class StepPacker:
    """Writes plans into arrays. While the same sequences decode step after step, their page tables are kept.

    Tokens in flight are looked up on the device, in one array of `ahead` sampled tokens followed by the packed ints.
    """

    def __init__(self, geometry: PoolGeometry, rows: int, most_pages: int, ahead: int) -> None:
        self._geometry = geometry
        self._ahead = ahead
        self._stays: list[tuple[Sequence, int]] = []
        self._starts = np.zeros(0, dtype=np.int32)
        self._owners = np.zeros(0, dtype=np.int32)
        self._tables = np.full((rows, most_pages), ZERO_PAGE, dtype=np.int32)

    def pack(self, plan: StepPlan, work: LoraWork | None, shape: StepShape, out: Ints) -> int:
        """Write the plan into out; `shape` is at least the plan's exact shape. Returns how many of shape.size ints are
        to be copied: those after them are not read."""
        offsets = shape.offsets()
        fields = {name: out[where] for name, where in offsets.items()}
        known = self._ahead + offsets["tokens"].start
        fields["sources"][:] = np.arange(known, known + shape.tokens, dtype=np.int32)
        fields["rows"].fill(ZERO_ROW)
        fields["row_owners"].fill(PAD_OWNER)
        self._pack_decodes(plan.works[: plan.decodes], fields)
        self._pad(plan.decodes, shape, fields)
        self._pack_chunks(plan.works[plan.decodes :], shape.decodes, fields)
        ends = accumulate((chunk.count for chunk in plan.works[plan.decodes :]), initial=shape.decodes)
        last = (*range(plan.decodes), *(end - 1 for end in islice(ends, 1, None)))
        samples = [place for place, one in zip(last, plan.works, strict=True) if one.samples]
        fields["samples"][: len(samples)] = samples
        fields["samples"][len(samples) :] = 0
        _pack_lora(plan, work, fields)
        return int(offsets["tables"].start) + self._pack_tables(plan, shape, fields)

    def _pack_decodes(self, works: tuple[Work, ...], fields: dict[str, Ints]) -> None:
        """One token each: the hot path, so a few array operations a field."""
        count = len(works)
        starts = np.fromiter((work.start for work in works), np.int32, count)
        self._follow([(work.sequence, work.stay) for work in works], starts)
        fields["tokens"][:count] = [work.sequence.tokens[work.start] if work.source < 0 else 0 for work in works]
        sources = np.fromiter((work.source for work in works), np.int32, count)
        np.copyto(fields["sources"][:count], sources, where=sources >= 0)
        fields["positions"][:count] = starts
        fields["lengths"][:count] = starts + 1
        blocks = self._tables[np.arange(count), starts // KV_BLOCK_TOKENS]
        fields["slots"][:count] = blocks * self._geometry.page_rows + starts % KV_BLOCK_TOKENS
        fields["owners"][:count] = self._owners

    def _follow(self, stays: list[tuple[Sequence, int]], starts: Ints) -> None:
        """Bring the page tables up to date. Sequences that go on where the last step ended keep their former pages,
        unless they were sent back meanwhile."""
        sequences = [sequence for sequence, _ in stays]
        if stays == self._stays and bool((starts == self._starts + 1).all()):
            for row in np.flatnonzero(starts % KV_BLOCK_TOKENS == 0).tolist():
                block = int(starts[row]) // KV_BLOCK_TOKENS
                self._tables[row, block] = sequences[row].pages[block]
        else:
            used = starts // KV_BLOCK_TOKENS + 1
            self._tables[: max(len(sequences), len(self._stays))].fill(ZERO_PAGE)
            pages = (sequence.pages[:count] for sequence, count in zip(sequences, used.tolist(), strict=True))
            most = int(used.max(initial=0))
            mask = np.arange(most) < used[:, None]
            self._tables[: len(sequences), :most][mask] = np.fromiter(
                chain.from_iterable(pages), np.int32, int(used.sum())
            )
            self._owners = np.fromiter(map(_owner, sequences), np.int32, len(sequences))
        self._stays, self._starts = stays, starts

    def _pad(self, count: int, shape: StepShape, fields: dict[str, Ints]) -> None:
        """Rows of decodes that the plan does not have: one token each, which reads zeros and writes to the scratch
        page."""
        here = slice(count, shape.decodes)
        for name in ("tokens", "positions", "slots"):
            fields[name][here] = 0
        fields["owners"][here] = BASE_OWNER
        fields["lengths"][here] = 1

    def _pack_chunks(self, works: tuple[Work, ...], at: int, fields: dict[str, Ints]) -> None:
        """Chunks of prompts, whose tokens start at `at`; then padding, which writes to the scratch page."""
        for number, work in enumerate(works):
            sequence, end = work.sequence, work.start + work.count
            here = slice(at, at + work.count)
            positions = np.arange(work.start, end, dtype=np.int32)
            pages = np.asarray(sequence.pages[: pages_for_tokens(end)], dtype=np.int32)
            fields["tokens"][here] = sequence.tokens[work.start : end]
            fields["positions"][here] = positions
            rows = pages[positions // KV_BLOCK_TOKENS] * self._geometry.page_rows
            fields["slots"][here] = rows + positions % KV_BLOCK_TOKENS
            fields["owners"][here] = _owner(sequence)
            fields["chunk_starts"][number] = work.start
            fields["chunk_counts"][number] = work.count
            at += work.count
        for name in ("tokens", "positions", "slots"):
            fields[name][at:] = 0
        fields["owners"][at:] = BASE_OWNER
        fields["chunk_starts"][len(works) :] = 0
        fields["chunk_counts"][len(works) :] = 0

    def _pack_tables(self, plan: StepPlan, shape: StepShape, fields: dict[str, Ints]) -> int:
        """Lay every work's pages one after another; returns how long that is."""
        used = (self._starts // KV_BLOCK_TOKENS + 1).tolist()
        tables = [self._tables[row, :count] for row, count in enumerate(used)]
        for work in plan.works[plan.decodes :]:
            tables.append(np.array(work.sequence.pages[: pages_for_tokens(work.start + work.count)], dtype=np.int32))
        ends = list(accumulate(map(len, tables), initial=FIRST_TABLE))
        starts = fields["table_starts"]
        starts[: plan.decodes] = ends[: plan.decodes]
        starts[plan.decodes : shape.decodes] = 0
        chunks = shape.decodes + len(plan.works) - plan.decodes
        starts[shape.decodes : chunks] = ends[plan.decodes : -1]
        starts[chunks:] = 0
        fields["tables"][:FIRST_TABLE] = ZERO_PAGE
        if tables:
            np.concatenate(tables, out=fields["tables"][FIRST_TABLE : ends[-1]])
        return ends[-1]


def _pack_lora(plan: StepPlan, work: LoraWork | None, fields: dict[str, Ints]) -> None:
    if work is not None:
        for name, values in work.lists.items():
            fields[name][: len(values)] = values
        return
    fields["counts"].fill(0)
    at = 0
    for adapter in plan.adapters:
        fields["rows"][at : at + adapter.rank] = adapter.rows
        fields["row_owners"][at : at + adapter.rank] = adapter.owner
        at += adapter.rank


def _owner(sequence: Sequence) -> int:
    return BASE_OWNER if sequence.adapter is None else sequence.adapter.owner
