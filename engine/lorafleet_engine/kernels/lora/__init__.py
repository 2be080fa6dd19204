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
    "TileWork",
    "TiledRows",
    "apply_lora",
    "tiled_rows",
    "uses_tiles",
]

LoraRows = GatheredRows | TiledRows


def uses_tiles(device: torch.device, granule: int) -> bool:
    """Whether the kernels run: on CUDA, for granules that a matrix product can be cut along."""
    return device.type == "cuda" and tile_unit(granule) >= RANK_TILE


def apply_lora(
    out: torch.Tensor, x: torch.Tensor, rows: LoraRows, site: tuple[int, int], widths: Sequence[int]
) -> None:
    """Add every token's own low-rank update to out in place: x A^T B for its adapter, nothing for base tokens.

    x [T, K]; out [T, sum(widths)], one width a projection; site is (layer, number of the group of projections).
    """
    layer, group = site
    if isinstance(rows, GatheredRows):
        reference.apply_lora(out, x, rows.pool, rows.index[group][layer], rows.mask, widths)
        return
    from lorafleet_engine.kernels.lora import kernel

    kernel.apply_lora(out, x, rows, site)
