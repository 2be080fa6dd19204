"""Lists of work for kernels/lora, from a step's plan: whose tokens meet which tiles of rank. Used by packing.py.

See kernels/lora/tiles.py for what a tile, a segment and a pair are.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lorafleet_engine.kernels.lora import NO_TILES, TileShape
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.sequence import StepPlan

Ints = npt.NDArray[np.int32]
Counts = npt.NDArray[np.signedinteger[Any]]

SEGMENT_LISTS = ("segment_start", "segment_count", "segment_tile", "segment_tiles", "segment_place")
PAIR_LISTS = ("pair_tile", "pair_start", "pair_count")
LIST_NAMES = (*SEGMENT_LISTS, *PAIR_LISTS)


@dataclass(frozen=True, slots=True)
class ListSizes:
    """Lengths of a step's lists, and what they were made for; zeros where the reference runs."""

    segments: int = 0
    pairs: int = 0
    shape: TileShape = NO_TILES


NO_LISTS = ListSizes()


@dataclass(frozen=True, slots=True)
class LoraWork:
    """The lists by the names of TileWork's fields, as long as they are used."""

    lists: dict[str, Ints]
    sizes: ListSizes


def lora_work(plan: StepPlan, shape: TileShape, decodes: int, least: int = 0) -> LoraWork | None:
    """Lay out a step's adapters in tiles and segments of that shape; None when it has none. The tokens of chunks stand
    behind `decodes` rows, which may be more than the plan's, and there are `least` tokens in all at least: the rest are
    padding, without an adapter."""
    if not plan.adapters:
        return None
    numbers = {adapter.owner: number for number, adapter in enumerate(plan.adapters)}
    base = len(numbers)
    owners = np.fromiter(
        (base if (one := work.sequence.adapter) is None else numbers[one.owner] for work in plan.works), np.int32
    )
    owners = np.repeat(owners, np.fromiter((work.count for work in plan.works), np.int32))
    owners = np.insert(owners, plan.decodes, np.full(decodes - plan.decodes, base))
    owners = np.append(owners, np.full(max(least - len(owners), 0), base))
    order = np.argsort(owners, kind="stable")
    tokens = np.bincount(owners, minlength=base + 1)
    tiles = np.array([*(-(-adapter.rank // shape.ranks) for adapter in plan.adapters), 0])
    first_tile = tiles.cumsum() - tiles
    owner, start, count = _pieces(tokens, shape.tokens)
    group, group_start, group_count = _pieces(tokens, shape.pair_tokens)
    pairs = tiles[group]
    first_pair = pairs.cumsum() - pairs
    of_pair = np.repeat(np.arange(len(group)), pairs)
    of_token = np.repeat(np.arange(len(group)), group_count)
    places = first_pair[of_token] * shape.pair_tokens + np.arange(len(order)) - group_start[of_token]
    lists = {
        "segment_start": start,
        "segment_count": count,
        "segment_tile": first_tile[owner],
        "segment_tiles": tiles[owner],
        "segment_place": places[start],
        "pair_tile": first_tile[group][of_pair] + np.arange(len(of_pair)) - first_pair[of_pair],
        "pair_start": group_start[of_pair],
        "pair_count": group_count[of_pair],
        "rows": _rows(plan, first_tile.tolist(), shape.ranks),
        "order": order,
        "counts": np.array([len(of_pair), len(owner)]),
    }
    return LoraWork(lists, ListSizes(len(owner), len(of_pair), shape))


def _pieces(tokens: Counts, size: int) -> tuple[Counts, Counts, Counts]:
    """Runs of so many `tokens` cut into pieces of at most `size`: whose each is, where it starts, how long it is."""
    pieces = -(-tokens // size)
    owner = np.repeat(np.arange(len(tokens)), pieces)
    piece = np.arange(len(owner)) - np.repeat(pieces.cumsum() - pieces, pieces)
    start = (tokens.cumsum() - tokens)[owner] + piece * size
    return owner, start, np.minimum(tokens[owner] - piece * size, size)


def _rows(plan: StepPlan, first_tile: list[int], ranks: int) -> Ints:
    """The adapters' rows of rank, each from its first tile on; 0 where a tile has none."""
    last = plan.adapters[-1]
    rows = np.zeros((first_tile[len(plan.adapters) - 1] + -(-last.rank // ranks)) * ranks, dtype=np.int32)
    for adapter, tile in zip(plan.adapters, first_tile, strict=False):
        rows[tile * ranks : tile * ranks + adapter.rank] = adapter.rows
    return rows


def most_work(tokens: int, shape: TileShape, limits: StepLimits) -> tuple[int, ListSizes]:
    """Rows of rank (whole tiles) and lists that no step of so many tokens within `limits` exceeds."""
    adapters = min(limits.distinct_adapters, tokens)
    tiles = (limits.rank_sum + (shape.ranks - 1) * adapters) // shape.ranks
    further = (tokens - 1) // shape.tokens
    pairs = tiles + (tokens - 1) // shape.pair_tokens * -(-limits.rank_sum // shape.ranks)
    return tiles * shape.ranks, ListSizes(min(tokens, adapters + 1 + further), pairs, shape)
