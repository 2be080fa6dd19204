"""Runs one planned step on the device. Owned by the loop's thread; nothing else touches the device."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from lorafleet_engine.kernels.lora import FEW_TOKENS, MANY_TOKENS, uses_tiles
from lorafleet_engine.memory.geometry import PoolGeometry, pages_for_tokens
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.model.config import ModelConfig
from lorafleet_engine.model.decoder import Decoder
from lorafleet_engine.model.rope import rope_table
from lorafleet_engine.runner.graphs import (
    MIXED_FEW,
    GraphCache,
    batch_size,
    decode_shapes,
    mixed_shape,
    mixed_shapes,
    rounded,
    tiles_of,
    with_lora,
)
from lorafleet_engine.runner.inputs import InputBuilder
from lorafleet_engine.runner.lora_work import LoraWork, lora_work, most_work
from lorafleet_engine.runner.packing import ALIGNMENT, StepPacker, StepShape, exact_shape
from lorafleet_engine.runner.pool import DevicePool
from lorafleet_engine.runner.rehearsal import DRAWS, NOTHING, rehearsal
from lorafleet_engine.runner.sampler import Draw, Sampled, Sampler
from lorafleet_engine.runner.staging import Staging
from lorafleet_engine.runner.team import Team
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan


class Runner:
    """Turns plans into logits and tokens: pack, one copy, then a captured graph (decode steps on CUDA) or the model as
    it is. On CUDA (`asynchronous`) nothing here waits for the device; `last_step` is when the last launched step ends.
    `tokens` are those sampled last, on the device.
    """

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
        on_cuda = device.type == "cuda"
        self.asynchronous = on_cuda
        self.last_step: torch.cuda.Event | None = None
        rows, size = batch_size(limits.sequences), self._largest_step()
        ints = torch.zeros(rows + size, dtype=torch.int32, device=device)
        self._packed = ints[rows:]
        self.tokens = ints[:rows]
        self._sampler = Sampler(self.tokens)
        self._logits = torch.empty(rows, config.shape.vocab, dtype=pool.memory.dtype, device=device)
        side = torch.cuda.Stream(device) if on_cuda else None  # type: ignore[no-untyped-call]
        heads = decoder.layers[0].attention.heads
        rope = rope_table(config, max_model_len, device)
        window = config.window_within(max_model_len)
        self._inputs = InputBuilder(geometry, pool, heads, window, rope, pool.memory.dtype, side, ints)
        self._staging = Staging(size, device)
        self._packer = StepPacker(geometry, limits.sequences, self._most_pages, rows)
        self._tiled = uses_tiles(device, geometry.granule)
        self._work: tuple[list[Sequence], LoraWork | None] = ([], None)
        self._graphs = GraphCache(self._forward, self._packed) if on_cuda else None

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture all graphs, run steps with prompts and draw, so that every kernel is compiled afterwards; on a CPU
        there is nothing to do. All processes of a Team do this by themselves."""
        if self._graphs is None:
            return
        longest = min(self._limits.tokens // 2, self._inputs.rope.shape[0])
        for plan in rehearsal(longest, self._limits.sequences, adapters=self._tiled):
            work = self._lora_work(plan, batch_size(plan.decodes))
            shape = rounded(exact_shape(plan, work), self._most_pages, self._limits)
            self._pack(plan, work, shape)
            self._staging.send(self._packed[: shape.size])
            self._forward(self._packed[: shape.size], shape)
        shapes = decode_shapes(self._most_pages, self._limits, tiled=self._tiled)
        shapes += mixed_shapes(self._most_pages, self._limits, tiled=self._tiled)
        for shape in shapes:
            ints = self._pack(NOTHING, None, shape)
            self._staging.send(self._packed[: len(ints)])
            self._graphs.capture((shape,))
        for draw in DRAWS:
            self._sampler.finish(self._logits[:1], {0: draw}).wait()
        self.pool.clear_reserved()

    def close(self) -> None:
        """Let go of the captured graphs: NCCL does not leave a group while graphs refer to it."""
        if self._graphs is not None:
            self._graphs.drop()

    @torch.inference_mode()
    def launch(self, plan: StepPlan, draws: Mapping[int, Draw]) -> Sampled:
        """Start a step; `draws` are those of its samples, by row, that are not plain. Tokens in flight are those of the
        step launched before."""
        before = self._sampler.before(draws)
        sampled = self._sampler.finish(self.logits(plan), draws, before)
        if self._team is not None:
            self._team.share(self.tokens)
        if self._graphs is not None:
            self.last_step = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.last_step.record()
        return sampled

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Run a step and return logits [S, vocab] of the works that sample, in order, valid until the next step."""
        if self._graphs is None:
            shape = self._send_exact(plan)
            return self._forward(self._packed[: shape.size], shape)
        exact, shape = self._send_rounded(plan)
        return self._run(shape)[: exact.samples]

    @torch.inference_mode()
    def eager_logits(self, plan: StepPlan) -> torch.Tensor:
        """The same without a graph, at the same padded shape: what a graph's logits must equal bit for bit."""
        exact, shape = self._send_rounded(plan)
        return self._forward(self._packed[: shape.size], shape)[: exact.samples]

    @torch.inference_mode()
    def follow(self, ints: npt.NDArray[np.int32], shape: StepShape) -> None:
        """Run a step that another process of a Team has packed."""
        self._staging.ints()[: len(ints)] = ints
        self._staging.send(self._packed[: len(ints)])
        self._run(shape)

    def _run(self, shape: StepShape) -> torch.Tensor:
        """Run what is packed, by a graph where its shape may have one."""
        if self._graphs is None or (shape.chunks and not shape.mixed):
            return self._forward(self._packed[: shape.size], shape)
        return self._replay(shape)

    def _replay(self, shape: StepShape) -> torch.Tensor:
        """Run a captured step. One that prepare has not captured samples tokens while it is captured: those of the step
        before, which it reads, are put back."""
        assert self._graphs is not None
        if shape not in self._graphs:
            before = self.tokens.clone()
            self._graphs.capture((shape,))
            self.tokens.copy_(before)
        return self._graphs.run(shape)

    def _forward(self, packed: torch.Tensor, shape: StepShape) -> torch.Tensor:
        """Logits, whose best tokens are sampled too: what a graph holds."""
        logits = self.decoder(self._inputs.build(packed, shape), self._logits[: shape.samples])
        self._sampler.choose(logits)
        return logits

    def _send_exact(self, plan: StepPlan) -> StepShape:
        work = self._lora_work(plan, plan.decodes)
        shape = exact_shape(plan, work)
        self._send(plan, work, shape)
        return shape

    def _send_rounded(self, plan: StepPlan) -> tuple[StepShape, StepShape]:
        """Returns the exact shape and the one that was sent."""
        mixed = self._mixed_shape(plan)
        if mixed is None:
            work = self._lora_work(plan, batch_size(plan.decodes))
            exact = exact_shape(plan, work)
            shape = rounded(exact, self._most_pages, self._limits)
        else:
            work = self._lora_work(plan, mixed.decodes, mixed)
            exact = exact_shape(plan, work)
            shape = mixed if work is None else with_lora(mixed, self._limits)
        self._send(plan, work, shape)
        return exact, shape

    def _mixed_shape(self, plan: StepPlan) -> StepShape | None:
        """The shape of a graph for a step with chunks of prompts, if there is one."""
        if self._graphs is None or plan.decodes == len(plan.works) or (plan.adapters and not self._tiled):
            return None
        return mixed_shape(exact_shape(plan, None), self._most_pages, self._limits)

    def _lora_work(self, plan: StepPlan, decodes: int, mixed: StepShape | None = None) -> LoraWork | None:
        """The step's lists, kept as long as the same sequences decode; in a graph of shape `mixed` if there is one."""
        if not self._tiled or not plan.adapters:
            return None
        if plan.decodes < len(plan.works):
            tiles, least = (MANY_TOKENS, 0) if mixed is None else (tiles_of(mixed), mixed.tokens)
            return lora_work(plan, tiles, decodes, least)
        sequences = [work.sequence for work in plan.works]
        if sequences != self._work[0]:
            self._work = sequences, lora_work(plan, FEW_TOKENS, decodes)
        return self._work[1]

    def _send(self, plan: StepPlan, work: LoraWork | None, shape: StepShape) -> None:
        """Pack the plan and copy it to the device in one go."""
        ints = self._pack(plan, work, shape)
        if self._team is not None:
            self._team.step(ints, shape)
        self._staging.send(self._packed[: len(ints)])

    def _pack(self, plan: StepPlan, work: LoraWork | None, shape: StepShape) -> npt.NDArray[np.int32]:
        """Returns what is to be copied."""
        ints = self._staging.ints()
        used = self._packer.pack(plan, work, shape, ints)
        return ints[:used]

    def _largest_step(self) -> int:
        limits = self._limits
        sequences = batch_size(limits.sequences)
        tokens = limits.tokens + sequences
        tables = sequences * self._most_pages
        rows, lists = max(
            (most_work(tokens, MANY_TOKENS, limits), most_work(sequences + MIXED_FEW, FEW_TOKENS, limits)),
            key=lambda most: most[1].pairs,
        )
        lora = 2 * (rows + MANY_TOKENS.ranks * limits.sequences) + tokens
        lora += 5 * lists.segments + 3 * lists.pairs
        fields = 5 * tokens + 9 * sequences + tables
        return fields + lora + ALIGNMENT * len(StepShape(0, 0, 0, 0, 0, lists=lists).fields)
