"""The packed ints of a step, on the device, made into what the layers read. Only device operations: it is captured in
graphs together with the model. Used by runner.py."""

from dataclasses import dataclass
from itertools import islice

import torch

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.kernels.attention import CacheLayout, decode_contexts
from lorafleet_engine.kernels.attention.reference import hiding_bias
from lorafleet_engine.kernels.lora import GatheredRows, GroupColumns, LoraRows, TileSource, TileWork, tiled_rows
from lorafleet_engine.kernels.rope import NewTokens
from lorafleet_engine.layers.batch import ForwardBatch, Segment
from lorafleet_engine.memory.geometry import ZERO_PAGE, PoolGeometry
from lorafleet_engine.model.decoder import GROUPS
from lorafleet_engine.runner.lora_work import LIST_NAMES
from lorafleet_engine.runner.packing import StepShape
from lorafleet_engine.runner.pool import DevicePool


@dataclass(frozen=True, slots=True)
class InputBuilder:
    """Turns packed ints into a ForwardBatch over one pool; rope is model.rope's table; `side` see TileSource."""

    geometry: PoolGeometry
    pool: DevicePool
    rope: torch.Tensor
    dtype: torch.dtype
    side: torch.cuda.Stream | None

    def build(self, packed: torch.Tensor, shape: StepShape) -> ForwardBatch:
        """packed [shape.size] is int32 on the device, as runner.packing wrote it."""
        fields = {name: packed[where] for name, where in shape.offsets().items()}
        angles = self.rope.index_select(0, fields["positions"])
        tables = fields["tables"].view(shape.decodes, shape.pages)
        layout = CacheLayout(KV_BLOCK_TOKENS, self.geometry.page_rows, ZERO_PAGE)
        return ForwardBatch(
            tokens=fields["tokens"],
            new=NewTokens(fields["slots"].long(), angles[:, None, 0], angles[:, None, 1]),
            decodes=shape.decodes,
            contexts=decode_contexts(tables, fields["lengths"], layout, self.dtype),
            segments=self._segments(fields["chunk_index"], fields["positions"], shape),
            samples=fields["samples"],
            cache=self.pool.cache,
            layer_rows=self.geometry.layer_rows,
            lora=self._lora(fields, shape),
        )

    def _segments(self, index: torch.Tensor, positions: torch.Tensor, shape: StepShape) -> tuple[Segment, ...]:
        segments = []
        start, at = shape.decodes, 0
        for count, context in shape.chunks:
            own = positions[start : start + count]
            inside = torch.arange(context, device=index.device) <= own[:, None]
            segments.append(Segment(start, count, index[at : at + context], hiding_bias(inside, self.dtype)))
            start += count
            at += context
        return tuple(segments)

    def _lora(self, fields: dict[str, torch.Tensor], shape: StepShape) -> LoraRows | None:
        if not shape.rows:
            return None
        if not shape.lists.segments:
            return self._gathered(fields)
        work = TileWork(**{name: fields[name] for name in ("rows", "order", "counts", *LIST_NAMES)})
        columns = self.geometry.layer_granules
        source = TileSource(self.pool.granules, self.pool.row_table, columns, self._groups(), self.side)
        return tiled_rows(source, work, shape.lists.token_tile)

    def _groups(self) -> tuple[GroupColumns, ...]:
        """Where every group of projections lies in a layer's part of a row of the row table."""
        sizes, granule = iter(self.geometry.module_granules), self.geometry.granule
        column, groups = 0, []
        for modules in GROUPS:
            downs, ups, widths, depth = [], [], [], 0
            for fan_in, fan_out in islice(sizes, len(modules)):
                downs.append(column)
                ups.append(column + fan_in)
                widths.append(fan_out * granule)
                depth = fan_in * granule
                column += fan_in + fan_out
            groups.append(GroupColumns(tuple(downs), tuple(ups), depth, tuple(widths)))
        return tuple(groups)

    def _gathered(self, fields: dict[str, torch.Tensor]) -> GatheredRows:
        layers, width, granule = self.geometry.layers, self.geometry.layer_granules, self.geometry.granule
        rows = self.pool.row_table.index_select(0, fields["rows"]).view(-1, layers, width).transpose(0, 1)
        mask = fields["owners"][:, None] == fields["row_owners"]
        index = []
        for group in self._groups():
            fan_in = group.depth // granule
            downs = [rows[:, :, start : start + fan_in].flatten(1) for start in group.downs]
            ups = [
                rows[:, :, start : start + out // granule].flatten(1)
                for start, out in zip(group.ups, group.widths, strict=True)
            ]
            index.append(torch.cat((*downs, *ups), dim=1))
        return GatheredRows(self.pool.granules, tuple(index), mask)
