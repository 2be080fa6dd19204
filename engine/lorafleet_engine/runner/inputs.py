"""The packed ints of a step, on the device, made into what the layers read. Only device operations: it is captured in
graphs together with the model. Used by runner.py."""

from dataclasses import dataclass
from itertools import islice

import torch

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.kernels.attention import CacheLayout, StepContexts, attention_work
from lorafleet_engine.kernels.lora import GatheredRows, GroupColumns, LoraRows, TileSource, TileWork, tiled_rows
from lorafleet_engine.kernels.rope import Heads, NewTokens
from lorafleet_engine.layers.batch import ForwardBatch
from lorafleet_engine.memory.geometry import ZERO_PAGE, PoolGeometry
from lorafleet_engine.model.decoder import GROUPS
from lorafleet_engine.runner.lora_work import LIST_NAMES
from lorafleet_engine.runner.packing import StepShape
from lorafleet_engine.runner.pool import DevicePool


@dataclass(frozen=True, slots=True)
class InputBuilder:
    """Turns packed ints into a ForwardBatch over one pool, for attention with these heads and `window` (see
    StepContexts); rope is model.rope's table; `side` see TileSource; `ints` are the sampled tokens of the step before
    and then the packed ints (see StepPacker)."""

    geometry: PoolGeometry
    pool: DevicePool
    heads: Heads
    window: int | None
    rope: torch.Tensor
    dtype: torch.dtype
    side: torch.cuda.Stream | None
    ints: torch.Tensor

    def build(self, packed: torch.Tensor, shape: StepShape) -> ForwardBatch:
        """packed [shape.size] is int32 on the device, as runner.packing wrote it."""
        fields = {name: packed[where] for name, where in shape.offsets().items()}
        angles = self.rope.index_select(0, fields["positions"])
        return ForwardBatch(
            tokens=self.ints.index_select(0, fields["sources"]),
            new=NewTokens(fields["slots"].long(), angles[:, None, 0], angles[:, None, 1]),
            attention=attention_work(self._contexts(fields, shape), self.dtype),
            samples=fields["samples"],
            cache=self.pool.cache,
            layer_rows=self.geometry.layer_rows,
            lora=self._lora(fields, shape),
        )

    def _contexts(self, fields: dict[str, torch.Tensor], shape: StepShape) -> StepContexts:
        return StepContexts(
            layout=CacheLayout(KV_BLOCK_TOKENS, self.geometry.page_rows, ZERO_PAGE),
            heads=self.heads,
            pages=fields["tables"],
            table_starts=fields["table_starts"],
            lengths=fields["lengths"],
            chunk_starts=fields["chunk_starts"],
            chunk_counts=fields["chunk_counts"],
            chunks=shape.chunks,
            window=self.window,
        )

    def _lora(self, fields: dict[str, torch.Tensor], shape: StepShape) -> LoraRows | None:
        if not shape.rows:
            return None
        if not shape.lists.segments:
            return self._gathered(fields)
        work = TileWork(**{name: fields[name] for name in ("order", "counts", *LIST_NAMES)})
        addresses = self.pool.row_table.index_select(1, fields["rows"])
        geometry = self.geometry
        hole = ZERO_PAGE * geometry.page_granules
        source = TileSource(self.pool.granules, addresses, hole, geometry.layer_columns, self._groups(), self.side)
        return tiled_rows(source, work, shape.lists.shape)

    def _groups(self) -> tuple[GroupColumns, ...]:
        """Where every group of projections lies in a layer's part of the row table."""
        sizes, granule = iter(self.geometry.module_granules), self.geometry.granule
        column, groups = 0, []
        for modules in GROUPS:
            own = tuple(islice(sizes, len(modules)))
            downs = tuple(range(column, column + 2 * len(own), 2))
            widths = tuple(fan_out * granule for _, fan_out in own)
            groups.append(GroupColumns(downs, tuple(down + 1 for down in downs), own[0][0] * granule, widths))
            column += 2 * len(own)
        return tuple(groups)

    def _gathered(self, fields: dict[str, torch.Tensor]) -> GatheredRows:
        """Every granule of every row, written out for the reference."""
        layers, granule = self.geometry.layers, self.geometry.granule
        rows = self.pool.row_table.index_select(1, fields["rows"]).view(layers, self.geometry.layer_columns, -1, 1)
        mask = fields["owners"][:, None] == fields["row_owners"]
        index = []
        for group in self._groups():
            columns = [(down, group.depth) for down in group.downs]
            columns += zip(group.ups, group.widths, strict=True)
            runs = [torch.arange(width // granule, dtype=torch.int32, device=rows.device) for _, width in columns]
            parts = [(rows[:, column] + run).flatten(1) for (column, _), run in zip(columns, runs, strict=True)]
            index.append(torch.cat(parts, dim=1))
        return GatheredRows(self.pool.granules, tuple(index), mask)
