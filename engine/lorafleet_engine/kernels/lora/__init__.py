"""Low-rank updates of many adapters at once: the op as layers/ call it, in the form that the device wants.

A step names its adapters' rows either gathered (GatheredRows, the reference's) or in tiles of rank with lists of work
for a fixed grid (TiledRows, the kernels'). Which one is decided once, by `uses_tiles`.
"""

from collections.abc import Sequence

import torch

from lorafleet_engine.kernels.lora import reference
from lorafleet_engine.kernels.lora.reference import GatheredRows
from lorafleet_engine.kernels.lora.tiles import (
    FEW_TOKENS,
    RANK_TILE,
    TOKEN_TILE,
    GroupColumns,
    TiledRows,
    TileSource,
    TileWork,
    tile_unit,
    tiled_rows,
)

__all__ = [
    "FEW_TOKENS",
    "RANK_TILE",
    "TOKEN_TILE",
    "GatheredRows",
    "GroupColumns",
    "LoraRows",
    "TileSource",
    "TileWork",
    "TiledRows",
    "apply_lora",
    "begin_lora",
    "tiled_rows",
    "uses_tiles",
]

LoraRows = GatheredRows | TiledRows


def uses_tiles(device: torch.device, granule: int) -> bool:
    """Whether the kernels run: on CUDA, for granules that a matrix product can be cut along."""
    return device.type == "cuda" and tile_unit(granule) >= RANK_TILE


def begin_lora(x: torch.Tensor, rows: LoraRows, site: tuple[int, int]) -> None:
    """Start what needs x [T, K] only, beside what the caller launches until it calls apply_lora for the same site."""
    if isinstance(rows, TiledRows):
        from lorafleet_engine.kernels.lora import kernel

        kernel.begin_lora(x, rows, site)


def apply_lora(
    out: torch.Tensor, x: torch.Tensor, rows: LoraRows, site: tuple[int, int], widths: Sequence[int]
) -> None:
    """Add every token's own low-rank update to out in place: x A^T B for its adapter, nothing for base tokens.

    x [T, K]; out [T, sum(widths)], one width a projection; site is (layer, number of the group of projections).
    begin_lora has been called with the same x, rows and site.
    """
    layer, group = site
    if isinstance(rows, GatheredRows):
        reference.apply_lora(out, x, rows.pool, rows.index[group][layer], rows.mask, widths)
        return
    from lorafleet_engine.kernels.lora import kernel

    kernel.apply_lora(out, rows, site)
