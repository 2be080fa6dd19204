"""Low-rank updates of many adapters at once: the op as layers/ call it, in the form that the device wants.

A step names its adapters' rows either gathered (GatheredRows, the reference's) or in tiles of rank with lists of work
for a fixed grid (TiledRows, the kernels'). Which one is decided once, by `uses_tiles`. Updates from tiles come in two
halves: the second one is done by whatever reads the output next (silu_mul, rotate_and_store, add_rms_norm).
"""

from collections.abc import Sequence

import torch

from lorafleet_engine.kernels.lora import reference
from lorafleet_engine.kernels.lora.reference import GatheredRows
from lorafleet_engine.kernels.lora.tiles import (
    FEW_TOKENS,
    MANY_TOKENS,
    NO_TILES,
    GroupColumns,
    LoraUpdate,
    TiledRows,
    TileShape,
    TileSource,
    TileWork,
    tile_unit,
    tiled_rows,
)

__all__ = [
    "FEW_TOKENS",
    "MANY_TOKENS",
    "NO_TILES",
    "GatheredRows",
    "GroupColumns",
    "LoraRows",
    "LoraUpdate",
    "TileShape",
    "TileSource",
    "TileWork",
    "TiledRows",
    "apply_lora",
    "apply_update",
    "begin_lora",
    "tiled_rows",
    "uses_tiles",
]

LoraRows = GatheredRows | TiledRows

LEAST_UNIT = 16


def uses_tiles(device: torch.device, granule: int) -> bool:
    """Whether the kernels run: on CUDA, for granules that rows can be read along."""
    return device.type == "cuda" and tile_unit(granule) >= LEAST_UNIT


def begin_lora(x: torch.Tensor, rows: LoraRows, site: tuple[int, int]) -> None:
    """Start what needs x [T, K] only, beside what the caller launches until it calls apply_lora for the same site."""
    if not isinstance(rows, TiledRows):
        return
    from lorafleet_engine.kernels.lora.shrink import shrink

    side = rows.source.side
    if side is None:
        shrink(x, rows, site)
        return
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        shrink(x, rows, site)


def apply_lora(
    out: torch.Tensor, x: torch.Tensor, rows: LoraRows, site: tuple[int, int], widths: Sequence[int]
) -> LoraUpdate | None:
    """Add every token's own low-rank update to out in place: x A^T B for its adapter, nothing for base tokens. Or
    return what is still to be added, by the op that reads out next or by apply_update.

    x [T, K]; out [T, sum(widths)], one width a projection; site is (layer, number of the group of projections).
    begin_lora has been called with the same x, rows and site.
    """
    layer, group = site
    if isinstance(rows, GatheredRows):
        reference.apply_lora(out, x, rows.pool, rows.index[group][layer], rows.mask, widths)
        return None
    if rows.source.side is not None:
        torch.cuda.current_stream().wait_stream(rows.source.side)
    return LoraUpdate(rows, site)


def apply_update(out: torch.Tensor, update: LoraUpdate | None) -> None:
    """Add to out [T, N] (contiguous) in place what apply_lora left to do; before the next apply_lora of the step."""
    if update is not None:
        from lorafleet_engine.kernels.lora.expand import expand

        expand(out, update)
