"""Lists of work for kernels/lora, from a step's plan: whose tokens meet which tiles of rank. Used by packing.py.

See kernels/lora/tiles.py for what a tile, a segment and a pair are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lorafleet_engine.kernels.lora import NO_TILES, TileShape
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.sequence import StepPlan

Ints = npt.NDArray[np.int32]

SEGMENT_LISTS = ("segment_start", "segment_count", "segment_tile", "segment_tiles", "segment_pair")
PAIR_LISTS = ("pair_tile", "pair_start", "pair_count")
TOKEN_LISTS = ("token_tile", "token_tiles", "token_place")
LIST_NAMES = (*SEGMENT_LISTS, *PAIR_LISTS, *TOKEN_LISTS)


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


def lora_work(plan: StepPlan, shape: TileShape, decodes: int) -> LoraWork | None:
    """Lay out a step's adapters in tiles and segments of that shape; None when it has none. The tokens of chunks stand
    behind `decodes` rows, which may be more than the plan's: the rest are padding, without an adapter."""
    if not plan.adapters:
        return None
    numbers = {adapter.owner: number for number, adapter in enumerate(plan.adapters)}
    base = len(numbers)
    owners = np.fromiter(
        (base if (one := work.sequence.adapter) is None else numbers[one.owner] for work in plan.works), np.int32
    )
    owners = np.repeat(owners, np.fromiter((work.count for work in plan.works), np.int32))
    owners = np.insert(owners, plan.decodes, np.full(decodes - plan.decodes, base))
    order = np.argsort(owners, kind="stable")
    tokens = np.bincount(owners, minlength=base + 1)
    tiles = np.array([*(-(-adapter.rank // shape.ranks) for adapter in plan.adapters), 0])
    first_tile = tiles.cumsum() - tiles
    pieces = -(-tokens // shape.tokens)
    owner = np.repeat(np.arange(base + 1), pieces)
    piece = np.arange(len(owner)) - np.repeat(pieces.cumsum() - pieces, pieces)
    start = (tokens.cumsum() - tokens)[owner] + piece * shape.tokens
    count = np.minimum(tokens[owner] - piece * shape.tokens, shape.tokens)
    own = tiles[owner]
    pair = own.cumsum() - own
    segment_of = np.repeat(np.arange(len(own)), own)
    of_token = np.repeat(np.arange(len(own)), count)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = pair[of_token] * shape.tokens + np.arange(len(order)) - start[of_token]
    lists = {
        "segment_start": start,
        "segment_count": count,
        "segment_tile": first_tile[owner],
        "segment_tiles": own,
        "segment_pair": pair,
        "pair_tile": first_tile[owner][segment_of] + np.arange(len(segment_of)) - pair[segment_of],
        "pair_start": start[segment_of],
        "pair_count": count[segment_of],
        "token_tile": first_tile[owners],
        "token_tiles": tiles[owners],
        "token_place": place,
        "rows": _rows(plan, first_tile.tolist(), shape.ranks),
        "order": order,
        "counts": np.array([len(segment_of), len(own)]),
    }
    return LoraWork(lists, ListSizes(len(own), len(segment_of), shape))


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
    pairs = tiles + further * -(-limits.rank_sum // shape.ranks)
    return tiles * shape.ranks, ListSizes(min(tokens, adapters + 1 + further), pairs, shape)
