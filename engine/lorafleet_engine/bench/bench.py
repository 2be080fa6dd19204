"""What the parts of the benchmark share: the device, the workload, one engine at a time and the ways to time it.

Used by bench/parts/ through command.py.
"""

import gc
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import torch

from lorafleet_contracts.capacity import usable_bytes
from lorafleet_engine.bench.catalogue import Blob, Catalogue
from lorafleet_engine.bench.engine import RandomSource
from lorafleet_engine.bench.floor import FloorModel, copy_bandwidth
from lorafleet_engine.bench.options import Dims, Options
from lorafleet_engine.bench.session import EnginePlan, Session
from lorafleet_engine.bench.workload import QWEN25_7B, RANKS, prompts
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.pauses import avoid_pauses
from lorafleet_engine.runner.assembly import Placement, assemble
from lorafleet_engine.runner.pool import DTYPES


@dataclass(frozen=True, slots=True)
class Case:
    """One figure to take. `run` returns its record."""

    key: str
    run: Callable[[], dict[str, Any]]


Part = Callable[["Bench"], Iterator[Case]]


class Bench:
    """Holds one engine at a time; another plan replaces it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.raw = {**QWEN25_7B, **options.dims.overrides}
        self.config = parse_config(self.raw, {})
        self.device = torch.device(options.device)
        self.dtype = DTYPES[options.dims.dtype]
        self._source = RandomSource(self.device, self.dtype)
        self.floor = FloorModel(self.config.shape, self.dtype.itemsize, copy_bandwidth(self.device))
        self.catalogue = Catalogue(self.config, self._source, options.sources / f"{options.dims.name}-blobs")
        self.warm_seconds: dict[float | None, list[float]] = {}
        """Of the serving traffic by popularity, so that parts of one run measure it once. See serving.py."""
        self._session: Session | None = None
        self._plan: EnginePlan | None = None

    @property
    def dims(self) -> Dims:
        return self.options.dims

    def plan(self, distinct: int | None = None) -> EnginePlan:
        """The engine that most cases share. Unless capped, a step may hold the whole catalogue."""
        cap = self.dims.catalogue if distinct is None else distinct
        limits = StepLimits(
            tokens=self.dims.step_tokens,
            sequences=max(self.dims.batches),
            distinct_adapters=cap,
            rank_sum=cap * max(RANKS),
        )
        return EnginePlan(limits, self.dims.window)

    def narrow_plan(self) -> EnginePlan:
        """The one for steps of few adapters: capped at as many of the widest rank as the rivals had slots."""
        plan = self.plan(self.dims.distinct[-1])
        return replace(plan, limits=replace(plan.limits, tokens=self.dims.batch_tokens))

    def long_plan(self, step_tokens: int, sequences: int) -> EnginePlan:
        """The same with a long window, and steps of so many tokens and sequences."""
        limits = replace(self.narrow_plan().limits, tokens=step_tokens, sequences=sequences)
        return EnginePlan(limits, self.dims.long_window)

    def session(self, plan: EnginePlan) -> Session:
        """The engine of this plan, built anew (the former one is dropped first) unless it is there already."""
        if self._session is None or self._plan != plan:
            self.drop()
            placement = Placement(
                self.device, self.dtype, self._usable(), plan.max_model_len, plan.limits, plan.quantization
            )
            self._session = Session(assemble(self.config, self._source, placement), self.floor.rank_unit_bytes)
            self._plan = plan
            avoid_pauses()  # as the loop's process does
        return self._session

    def drop(self) -> None:
        """Let the engine go, and its memory: after a failure nobody knows what it still runs."""
        self._session, self._plan = None, None
        gc.enable()
        gc.unfreeze()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def adapters(self, count: int, kind: str) -> list[Blob]:
        """The first `count` adapters of a rank, or "mixed"; fewer where the catalogue has no more."""
        return self.catalogue.take(self.catalogue.numbers(count, kind, self.dims.catalogue))

    def prompts(self, count: int, length: int, seed: int) -> list[list[int]]:
        """The workload's prompts."""
        return prompts(count, length, seed, vocab=min(151000, self.config.shape.vocab))

    def repeated(self, measure: Callable[[int], float], *, warm: bool = False) -> list[float]:
        """Warm up once (graphs are captured) unless that is done, then measure `repeats` times, each with prompts of
        another seed."""
        if not warm:
            measure(1)
        return [measure(seed) for seed in range(2, 2 + self.options.repeats)]

    def _usable(self) -> int:
        if self.dims.memory_bytes is not None:
            return self.dims.memory_bytes
        _, total = torch.cuda.mem_get_info(self.device)
        return usable_bytes(total, self.options.utilization_percent)


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences that start together: `rows` prompts of `prompt` tokens over `adapters` in turn (none: the base)."""

    rows: int
    prompt: int
    adapters: tuple[Blob, ...] = ()

    def per_row(self) -> list[Blob | None]:
        """The adapter of each row."""
        return list(islice(cycle(self.adapters), self.rows)) if self.adapters else [None] * self.rows

    @property
    def used(self) -> tuple[Blob, ...]:
        """The distinct adapters of the batch's rows."""
        return self.adapters[: self.rows]


def answer_seconds(bench: Bench, session: Session, batch: Batch, answer: int, seed: int) -> float:
    """Seconds from sending a batch's requests to the last token of `answer` each."""
    drawn = bench.prompts(batch.rows, batch.prompt, seed)
    return session.run([session.requests(drawn, batch.per_row(), answer)]).seconds


def decode_ms(bench: Bench, session: Session, batch: Batch) -> list[float]:
    """Milliseconds per step through the generate path, of each repeat: (t(steps + 1 tokens) - t(1)) / steps."""
    steps = bench.dims.decode_steps

    def measure(seed: int) -> float:
        first = answer_seconds(bench, session, batch, 1, seed)
        return (answer_seconds(bench, session, batch, steps + 1, seed) - first) / steps * 1e3

    answer_seconds(bench, session, batch, steps + 1, 1)  # captures the graphs of every batch size and context
    return [measure(seed) for seed in range(2, 2 + bench.options.repeats)]


def median(values: Iterable[float], digits: int = 4) -> float:
    """The median, rounded for a record."""
    return round(statistics.median(values), digits)


def rounded(values: Sequence[float], digits: int = 4) -> list[float]:
    """The repeats behind a median, for a record."""
    return [round(value, digits) for value in values]
