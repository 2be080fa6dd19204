"""Runs one planned step on the device. Owned by the loop's thread; nothing else touches the device."""

import numpy as np
import numpy.typing as npt
import torch

from lorafleet_engine.kernels.lora import FEW_TOKENS, RANK_TILE, TOKEN_TILE, uses_tiles
from lorafleet_engine.memory.geometry import PoolGeometry, pages_for_tokens
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.model.config import ModelConfig
from lorafleet_engine.model.decoder import Decoder
from lorafleet_engine.model.rope import rope_table
from lorafleet_engine.runner.graphs import GraphCache, rounded
from lorafleet_engine.runner.inputs import InputBuilder
from lorafleet_engine.runner.lora_work import LoraWork, lora_work, most_work, token_tile
from lorafleet_engine.runner.packing import ALIGNMENT, StepShape, exact_shape, pack
from lorafleet_engine.runner.pool import DevicePool
from lorafleet_engine.runner.team import Team
from lorafleet_engine.scheduler.sequence import StepPlan


class Runner:
    """Turns plans into logits: pack, one copy, then a captured graph (decode steps on CUDA) or the model as it is."""

    def __init__(
        self,
        config: ModelConfig,
        decoder: Decoder,
        pool: DevicePool,
        geometry: PoolGeometry,
        limits: StepLimits,
        *,
        max_model_len: int,
        team: Team | None = None,
    ) -> None:
        self.pool = pool
        self.decoder = decoder
        self._team = team
        self._geometry = geometry
        self._limits = limits
        self._most_pages = pages_for_tokens(max_model_len)
        device = pool.memory.device
        heads = decoder.layers[0].attention.heads
        rope = rope_table(config, max_model_len, device)
        size = self._largest_step(max_model_len)
        on_cuda = device.type == "cuda"
        side = torch.cuda.Stream(device) if on_cuda else None  # type: ignore[no-untyped-call]
        self._inputs = InputBuilder(geometry, pool, heads, rope, pool.memory.dtype, side)
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=on_cuda)
        self._ints = self._host.numpy()
        self._packed = torch.zeros(size, dtype=torch.int32, device=device)
        self._tiled = uses_tiles(device, geometry.granule)
        self._graphs = GraphCache(self._forward, self._packed) if on_cuda else None

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Run a step and return logits [S, vocab] of the works that sample, in order, valid until the next step."""
        work = lora_work(plan, token_tile(plan)) if self._tiled else None
        shape = exact_shape(plan, work)
        if self._graphs is None or shape.chunks:
            self._send(plan, work, shape)
            return self._forward(self._packed[: shape.size], shape)
        padded = rounded(shape, self._most_pages, self._limits)
        self._send(plan, work, padded)
        return self._graphs.run(padded)[: shape.samples]

    @torch.inference_mode()
    def eager_logits(self, plan: StepPlan) -> torch.Tensor:
        """The same without a graph, at the same padded shape: what a graph's logits must equal bit for bit."""
        work = lora_work(plan, token_tile(plan)) if self._tiled else None
        exact = exact_shape(plan, work)
        shape = exact if exact.chunks else rounded(exact, self._most_pages, self._limits)
        self._send(plan, work, shape)
        return self._forward(self._packed[: shape.size], shape)[: exact.samples]

    @torch.inference_mode()
    def follow(self, ints: npt.NDArray[np.int32], shape: StepShape) -> None:
        """Run a step that another process of a Team has packed."""
        if self._graphs is not None:
            torch.cuda.current_stream().synchronize()  # the last step's ints may still be on their way
        self._ints[: shape.size] = ints
        self._packed[: shape.size].copy_(self._host[: shape.size], non_blocking=True)
        if self._graphs is None or shape.chunks:
            self._forward(self._packed[: shape.size], shape)
        else:
            self._graphs.run(shape)

    def _forward(self, packed: torch.Tensor, shape: StepShape) -> torch.Tensor:
        return self.decoder(self._inputs.build(packed, shape))

    def _send(self, plan: StepPlan, work: LoraWork | None, shape: StepShape) -> None:
        """Pack the plan and copy it to the device in one go."""
        ints: np.ndarray[tuple[int], np.dtype[np.int32]] = self._ints[: shape.size]
        pack(plan, work, shape, self._geometry, ints)
        if self._team is not None:
            self._team.step(ints, shape)
        self._packed[: shape.size].copy_(self._host[: shape.size], non_blocking=True)

    def _largest_step(self, max_model_len: int) -> int:
        limits = self._limits
        sequences = 2 * limits.sequences
        tables = sequences * self._most_pages
        rows, lists = max(
            (most_work(limits.tokens, TOKEN_TILE, limits), most_work(sequences, FEW_TOKENS, limits)),
            key=lambda most: most[1].pairs,
        )
        lora = 2 * (rows + RANK_TILE * limits.sequences) + limits.tokens + 5 * lists.segments + 3 * lists.pairs
        fields = 4 * limits.tokens + 9 * sequences + tables
        return fields + lora + ALIGNMENT * len(StepShape(0, 0, 0, 0, 0, lists=lists).fields)
