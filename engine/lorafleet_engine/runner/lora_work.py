"""Lists of work for kernels/lora, from a step's plan: whose tokens meet which tiles of rank. Used by packing.py.

See kernels/lora/tiles.py for what a tile, a segment and a pair are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lorafleet_engine.kernels.lora import RANK_TILE
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.sequence import StepPlan

Ints = npt.NDArray[np.int32]

SEGMENT_LISTS = ("segment_start", "segment_count", "segment_tile", "segment_tiles", "segment_pair")
PAIR_LISTS = ("pair_tile", "pair_start", "pair_count")
LIST_NAMES = (*SEGMENT_LISTS, *PAIR_LISTS)


@dataclass(frozen=True, slots=True)
class ListSizes:
    """Lengths of a step's lists, for segments of up to `token_tile` tokens; zeros where the reference runs."""

    segments: int = 0
    pairs: int = 0
    token_tile: int = 0


NO_LISTS = ListSizes()


@dataclass(frozen=True, slots=True)
class LoraWork:
    """The lists by the names of TileWork's fields, as long as they are used."""

    lists: dict[str, Ints]
    sizes: ListSizes


def lora_work(plan: StepPlan, most: int, decodes: int) -> LoraWork | None:
    """Lay out a step's adapters in segments of at most `most` tokens; None when it has none. The tokens of chunks stand
    behind `decodes` rows, which may be more than the plan's."""
    if not plan.adapters:
        return None
    numbers = {adapter.owner: number for number, adapter in enumerate(plan.adapters)}
    owners = np.fromiter(
        (-1 if work.sequence.adapter is None else numbers[work.sequence.adapter.owner] for work in plan.works), np.int32
    )
    owners = np.repeat(owners, np.fromiter((work.count for work in plan.works), np.int32))
    counts = np.bincount(owners[owners >= 0], minlength=len(numbers))
    order = np.argsort(owners, kind="stable")[len(owners) - counts.sum() :]
    order[order >= plan.decodes] += decodes - plan.decodes
    tiles = np.array([-(-adapter.rank // RANK_TILE) for adapter in plan.adapters])
    rows = np.zeros(tiles.sum() * RANK_TILE, dtype=np.int32)
    first_tile = tiles.cumsum() - tiles
    for adapter, tile in zip(plan.adapters, first_tile.tolist(), strict=True):
        rows[tile * RANK_TILE : tile * RANK_TILE + adapter.rank] = adapter.rows
    pieces = -(-counts // most)
    adapter_of = np.repeat(np.arange(len(numbers)), pieces)
    piece = np.arange(len(adapter_of)) - np.repeat(pieces.cumsum() - pieces, pieces)
    start = (counts.cumsum() - counts)[adapter_of] + piece * most
    count = np.minimum(counts[adapter_of] - piece * most, most)
    own = tiles[adapter_of]
    pair = own.cumsum() - own
    segment_of = np.repeat(np.arange(len(own)), own)
    lists = {
        "segment_start": start,
        "segment_count": count,
        "segment_tile": first_tile[adapter_of],
        "segment_tiles": own,
        "segment_pair": pair,
        "pair_tile": first_tile[adapter_of][segment_of] + np.arange(len(segment_of)) - pair[segment_of],
        "pair_start": start[segment_of],
        "pair_count": count[segment_of],
        "rows": rows,
        "order": order,
        "counts": np.array([len(segment_of), len(own)]),
    }
    return LoraWork(lists, ListSizes(len(own), len(segment_of), most))


def most_work(tokens: int, most: int, limits: StepLimits) -> tuple[int, ListSizes]:
    """Rows of rank (whole tiles) and lists that no step of so many tokens within `limits` exceeds."""
    adapters = min(limits.distinct_adapters, tokens)
    tiles = (limits.rank_sum + (RANK_TILE - 1) * adapters) // RANK_TILE
    further = (tokens - 1) // most
    pairs = tiles + further * -(-limits.rank_sum // RANK_TILE)
    return tiles * RANK_TILE, ListSizes(min(tokens, adapters + further), pairs, most)
