"""Captured decode steps: one CUDA graph a rounded shape, whatever adapters, ranks and pages the step has.

Used by runner.py on CUDA devices only.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from lorafleet_engine.messages import StepLimits
from lorafleet_engine.runner.lora_work import most_work
from lorafleet_engine.runner.packing import StepShape

ROW_STEP = 128
"""Rows of rank are rounded up to multiples of this, and to powers of two above it, where they are gathered."""


def rounded(shape: StepShape, most_pages: int, limits: StepLimits) -> StepShape:
    """Round a decode step's shape up to one that is worth a graph. Raises ValueError for one with prompt chunks."""
    if shape.chunks:
        raise ValueError("steps with prompt chunks are not captured")
    decodes = _power_of_two(shape.decodes)
    pages = min(_power_of_two(max(shape.pages, 16)), most_pages)
    rows, lists = 0, shape.lists
    if lists.segments:
        rows, lists = most_work(decodes, lists.token_tile, limits)
    elif shape.rows:
        rows = min(_power_of_two(max(shape.rows, ROW_STEP)), limits.rank_sum)
    return replace(shape, tokens=decodes, decodes=decodes, samples=decodes, pages=pages, rows=rows, lists=lists)


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


class GraphCache:
    """Captures `forward(packed, shape) -> logits` once a shape and replays it.

    `packed` is the buffer the graphs read: the caller fills it before every run. Logits are valid until the next run.
    """

    def __init__(self, forward: Callable[[torch.Tensor, StepShape], torch.Tensor], packed: torch.Tensor) -> None:
        self._forward = forward
        self._packed = packed
        self._captured: dict[StepShape, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def run(self, shape: StepShape) -> torch.Tensor:
        """Replay (first capture, if need be) the step that `packed` holds."""
        if shape not in self._captured:
            self._captured[shape] = self._capture(shape)
        graph, logits = self._captured[shape]
        graph.replay()
        return logits

    def _capture(self, shape: StepShape) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        packed = self._packed[: shape.size]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._forward(packed, shape)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Threads that copy adapters go on calling the driver meanwhile.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            logits = self._forward(packed, shape)
        return graph, logits
