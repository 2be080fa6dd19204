"""What attention is told about a step: where each sequence's pages are listed, and how long its context is.

Made by runner/inputs.py, read by both forms of the op. Device tensors and model constants only, but for the chunks'
sizes, which shape a launch.
"""

from dataclasses import dataclass

import torch

from lorafleet_engine.kernels.rope.reference import Heads


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Pages in a layer's view of the cache: `block` tokens each, `page_rows` rows apart, and which one is zeros."""

    block: int
    page_rows: int
    zero_page: int


@dataclass(frozen=True, slots=True)
class StepContexts:
    """The contexts of a step: D single tokens, then C chunks of prompts.

    pages [P] int32 are the page lists of all, one after another; table_starts [D + C] is where each one's begin.
    lengths [D] counts the tokens of a decode's context, its own included (>= 1). A chunk has chunk_counts [C] tokens
    after chunk_starts [C] earlier ones; `chunks` are the same numbers on the host, as (count, start + count), or for a
    graph numbers that are as large in all. A token sees the newest `window` tokens, itself included, or (None) all.
    """

    layout: CacheLayout
    heads: Heads
    pages: torch.Tensor
    table_starts: torch.Tensor
    lengths: torch.Tensor
    chunk_starts: torch.Tensor
    chunk_counts: torch.Tensor
    chunks: tuple[tuple[int, int], ...]
    window: int | None = None

    @property
    def decodes(self) -> int:
        return self.lengths.shape[0]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads.query // self.heads.kv
