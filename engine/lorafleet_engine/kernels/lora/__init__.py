"""Low-rank updates of many adapters at once: the op as layers/ call it, in the form that the device wants.

A step names its adapters' rows either gathered (GatheredRows, the reference's) or in tiles of rank with lists of work
for a fixed grid (TiledRows, the kernels'). Which one is decided once, by `uses_tiles`. Updates from tiles come in two
halves: the second one is done by whatever reads the output next (silu_mul, rotate_and_store), or beside the projection
too, and then added by what reads that (add_rms_norm).
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


def begin_lora(
    x: torch.Tensor, rows: LoraRows, site: tuple[int, int], widths: Sequence[int]
) -> GatheredRows | LoraUpdate:
    """Start what needs x [T, K] only, beside what the caller launches until it gives the result to apply_lora.

    site is (layer, number of the group of projections); one width a projection.
    """
    if not isinstance(rows, TiledRows):
        return rows
    from lorafleet_engine.kernels.lora.expand import expand_apart
    from lorafleet_engine.kernels.lora.shrink import shrink

    side, sums = rows.source.side, None
    if rows.shape.few and len(widths) == 1:
        # Taken before the projection, whose scratch memory it could be otherwise.
        sums = torch.empty(x.shape[0], widths[0], dtype=torch.float32, device=x.device)
    if side is not None:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        shrink(x, rows, site)
        if sums is not None:
            expand_apart(sums, rows, site)
    return LoraUpdate(rows, site, sums)


def apply_lora(
    out: torch.Tensor, x: torch.Tensor, begun: GatheredRows | LoraUpdate, site: tuple[int, int], widths: Sequence[int]
) -> LoraUpdate | None:
    """Add every token's own low-rank update to out in place: x A^T B for its adapter, nothing for base tokens. Or
    return what is still to be added, by the op that reads out next or by apply_update.

    out [T, sum(widths)]; `begun` is what begin_lora returned for the same x, site and widths.
    """
    if isinstance(begun, GatheredRows):
        layer, group = site
        reference.apply_lora(out, x, begun.pool, begun.index[group][layer], begun.mask, widths)
        return None
    if begun.rows.source.side is not None:
        torch.cuda.current_stream().wait_stream(begun.rows.source.side)
    return begun


def apply_update(out: torch.Tensor, update: LoraUpdate | None) -> None:
    """Add to out [T, N] (contiguous) in place what apply_lora left to do; before the next apply_lora of the step."""
    if update is None:
        return
    if update.sums is None:
        from lorafleet_engine.kernels.lora.expand import expand

        expand(out, update)
    else:
        out.add_(update.sums)
