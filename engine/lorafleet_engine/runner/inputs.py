"""The packed ints of a step, on the device, made into what the layers read. Only device operations: it is captured in
graphs together with the model. Used by runner.py."""

from dataclasses import dataclass
from itertools import islice

import torch

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.layers.batch import ForwardBatch, LoraBatch, Segment
from lorafleet_engine.memory.geometry import ZERO_PAGE, PoolGeometry
from lorafleet_engine.model.decoder import GROUPS
from lorafleet_engine.runner.packing import StepShape
from lorafleet_engine.runner.pool import DevicePool


@dataclass(frozen=True, slots=True)
class InputBuilder:
    """Turns packed ints into a ForwardBatch over one pool; rope is model.rope's table."""

    geometry: PoolGeometry
    pool: DevicePool
    rope: torch.Tensor
    dtype: torch.dtype

    def build(self, packed: torch.Tensor, shape: StepShape) -> ForwardBatch:
        """packed [shape.size] is int32 on the device, as runner.packing wrote it."""
        fields = {name: packed[where] for name, where in shape.offsets().items()}
        angles = self.rope.index_select(0, fields["positions"])
        index, bias = self._contexts(fields["tables"].view(shape.decodes, shape.pages), fields["lengths"])
        return ForwardBatch(
            tokens=fields["tokens"],
            slots=fields["slots"].long(),
            cos=angles[:, None, 0],
            sin=angles[:, None, 1],
            decodes=shape.decodes,
            index=index,
            bias=bias,
            segments=self._segments(fields["chunk_index"], fields["positions"], shape),
            samples=fields["samples"],
            cache=self.pool.cache,
            layer_rows=self.geometry.layer_rows,
            lora=self._lora(fields) if shape.rows else None,
        )

    def _contexts(self, tables: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cache rows [D, C] of every decode's context, zeros past its end, and a bias [D, 1, 1, C] that hides those."""
        block = torch.arange(KV_BLOCK_TOKENS, device=tables.device, dtype=torch.int32)
        rows = (tables[:, :, None] * self.geometry.page_rows + block).flatten(1)
        inside = torch.arange(rows.shape[1], device=tables.device) < lengths[:, None]
        index = torch.where(inside, rows, ZERO_PAGE * self.geometry.page_rows)
        return index, self._bias(inside)[:, None, None, :]

    def _segments(self, index: torch.Tensor, positions: torch.Tensor, shape: StepShape) -> tuple[Segment, ...]:
        segments = []
        start, at = shape.decodes, 0
        for count, context in shape.chunks:
            own = positions[start : start + count]
            inside = torch.arange(context, device=index.device) <= own[:, None]
            segments.append(Segment(start, count, index[at : at + context], self._bias(inside)))
            start += count
            at += context
        return tuple(segments)

    def _bias(self, inside: torch.Tensor) -> torch.Tensor:
        hidden = torch.full((), float("-inf"), device=inside.device, dtype=self.dtype)
        return torch.where(inside, torch.zeros((), device=inside.device, dtype=self.dtype), hidden)

    def _lora(self, fields: dict[str, torch.Tensor]) -> LoraBatch:
        layers, width = self.geometry.layers, self.geometry.layer_granules
        rows = self.pool.row_table.index_select(0, fields["rows"]).view(-1, layers, width).transpose(0, 1)
        mask = fields["owners"][:, None] == fields["row_owners"]
        sizes = iter(self.geometry.module_granules)
        column, index = 0, []
        for modules in GROUPS:
            downs, ups = [], []
            for fan_in, fan_out in islice(sizes, len(modules)):
                split, end = column + fan_in, column + fan_in + fan_out
                downs.append(rows[:, :, column:split].flatten(1))
                ups.append(rows[:, :, split:end].flatten(1))
                column = end
            index.append(torch.cat((*downs, *ups), dim=1))
        return LoraBatch(self.pool.granules, tuple(index), mask)
