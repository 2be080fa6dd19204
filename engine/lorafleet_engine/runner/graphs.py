"""Captured steps: one CUDA graph a rounded shape, whatever adapters, ranks and pages the step has. All decode steps are
captured, and those with few tokens of prompts: launched one by one, their kernels would keep the device waiting.

Used by runner.py on CUDA devices only. All of them are captured before the first request.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

import torch

from lorafleet_engine.kernels.lora import FEW_TOKENS, MANY_TOKENS, TileShape
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.runner.lora_work import most_work
from lorafleet_engine.runner.packing import StepShape

SEQUENCE_STEP = 8
"""Decodes are rounded up to multiples of this, and to powers of two below it."""
MIXED_DECODES, MIXED_TOKENS = (16, 64, 192), (64, 192, 512, 1024)
"""Decodes (and as many as a step may have) and tokens of prompts that steps with both are rounded up to."""
MIXED_FEW = 192
"""Tokens of prompts up to which such a step's adapters are computed as in decode steps: its decodes have few tokens
each."""
MIXED_CHUNKS = 16
"""How many prompts' chunks such a step may have."""
ROW_STEP = 128
"""Rows of rank are rounded up to multiples of this, and to powers of two above it, where they are gathered."""


def batch_size(decodes: int) -> int:
    """How many rows a step of so many decodes gets."""
    if decodes <= SEQUENCE_STEP:
        return _power_of_two(decodes) if decodes else 0
    return -(-decodes // SEQUENCE_STEP) * SEQUENCE_STEP


def rounded(shape: StepShape, most_pages: int, limits: StepLimits) -> StepShape:
    """Round a step's shape up: of steps without prompt chunks there are few shapes; of others, the decodes' are few."""
    decodes = batch_size(shape.decodes)
    tokens = shape.tokens - shape.decodes + decodes
    if shape.chunks:
        return replace(shape, tokens=tokens, decodes=decodes)
    pages, rows, lists = decodes * most_pages, 0, shape.lists
    if lists.segments:
        rows, lists = most_work(decodes, lists.shape, limits)
    elif shape.rows:
        rows = min(_power_of_two(max(shape.rows, ROW_STEP)), limits.rank_sum)
    return replace(shape, tokens=tokens, decodes=decodes, samples=decodes, pages=pages, rows=rows, lists=lists)


def decode_shapes(most_pages: int, limits: StepLimits, *, tiled: bool) -> list[StepShape]:
    """Every shape that decode steps are rounded to, the largest first; with LoRA only where it runs in tiles."""
    sizes = sorted({batch_size(count) for count in range(1, limits.sequences + 1)}, reverse=True)
    shapes = [StepShape(size, size, size * most_pages, size, 0) for size in sizes]
    return _with_and_without(shapes, limits) if tiled else shapes


def mixed_shape(exact: StepShape, most_pages: int, limits: StepLimits) -> StepShape | None:
    """What a step with chunks of prompts is rounded up to, its LoRA left out; None for one that is not captured."""
    tokens, chunks = exact.tokens - exact.decodes, len(exact.chunks)
    shapes = _mixed(most_pages, limits) if 0 < chunks <= MIXED_CHUNKS else ()
    fitting = (shape for shape in shapes if shape.decodes >= exact.decodes and shape.tokens - shape.decodes >= tokens)
    return next(fitting, None)


def mixed_shapes(most_pages: int, limits: StepLimits, *, tiled: bool) -> list[StepShape]:
    """Every shape that mixed_shape gives, the largest first; with LoRA as decode_shapes has it."""
    shapes = list(reversed(_mixed(most_pages, limits)))
    return _with_and_without(shapes, limits) if tiled else shapes


def tiles_of(shape: StepShape) -> TileShape:
    """How the adapters of a step of this shape, rounded or not, are computed."""
    prompts = shape.tokens - shape.decodes
    return FEW_TOKENS if prompts == 0 or (shape.mixed and prompts <= MIXED_FEW) else MANY_TOKENS


def with_lora(shape: StepShape, limits: StepLimits) -> StepShape:
    """The shape of such a step whose tokens have adapters."""
    rows, lists = most_work(shape.tokens, tiles_of(shape), limits)
    return replace(shape, rows=rows, lists=lists)


def _with_and_without(shapes: list[StepShape], limits: StepLimits) -> list[StepShape]:
    return [each for shape in shapes for each in (with_lora(shape, limits), shape)]


@lru_cache(maxsize=8)
def _mixed(most_pages: int, limits: StepLimits) -> tuple[StepShape, ...]:
    """Shapes of steps with prompts, the smallest first."""
    sizes = sorted({batch_size(min(count, limits.sequences)) for count in (*MIXED_DECODES, limits.sequences)})
    counts = sorted({min(tokens, limits.tokens) for tokens in MIXED_TOKENS})
    chunks, most = min(MIXED_CHUNKS, limits.sequences), batch_size(limits.sequences)
    return tuple(
        StepShape(
            tokens=size + tokens,
            decodes=size,
            pages=most * most_pages,
            samples=min(size + chunks, most),
            rows=0,
            chunks=((tokens, tokens), *[(0, 0)] * (chunks - 1)),
            mixed=True,
        )
        for size in sizes
        for tokens in counts
    )


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


class GraphCache:
    """Captures `forward(packed, shape) -> logits` once a shape and replays it.

    `packed` is the buffer the graphs read: the caller fills it before every run. Logits are valid until the next run;
    they must not be memory of a graph, which another may use again.
    """

    def __init__(self, forward: Callable[[torch.Tensor, StepShape], torch.Tensor], packed: torch.Tensor) -> None:
        self._forward = forward
        self._packed = packed
        self._captured: dict[StepShape, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._memory = torch.cuda.graph_pool_handle()
        # One for all: cuBLAS keeps a workspace of 33 MB for every stream that it has ever seen.
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __contains__(self, shape: StepShape) -> bool:
        return shape in self._captured

    def capture(self, shapes: Iterable[StepShape]) -> None:
        """Have graphs of these shapes; `packed` must hold a step that may run at each of them."""
        for shape in shapes:
            if shape not in self._captured:
                self._captured[shape] = self._capture(shape)

    def drop(self) -> None:
        """Forget all graphs, once the device has run what was launched."""
        torch.cuda.synchronize()
        self._captured.clear()

    def run(self, shape: StepShape) -> torch.Tensor:
        """Replay (first capture, if need be) the step that `packed` holds."""
        self.capture((shape,))
        graph, logits = self._captured[shape]
        graph.replay()
        return logits

    def _capture(self, shape: StepShape) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        packed = self._packed[: shape.size]
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            self._forward(packed, shape)
        torch.cuda.current_stream().wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        # Threads that copy adapters go on calling the driver meanwhile.
        with torch.cuda.graph(graph, pool=self._memory, stream=self._side, capture_error_mode="thread_local"):
            logits = self._forward(packed, shape)
        return graph, logits
