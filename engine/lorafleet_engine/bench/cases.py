"""The cases of the smoke: decode steps through the engine's scheduler, memory and runner, timed and judged.

Used by smoke.py.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lorafleet_engine.bench.engine import RandomSource, install, random_adapters
from lorafleet_engine.bench.judge import Judge
from lorafleet_engine.bench.plain import PlainModel
from lorafleet_engine.bench.workload import QWEN25_7B, RANKS, prompts
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.runner.assembly import EngineCore, Placement, assemble
from lorafleet_engine.scheduler.sequence import Sequence

TINY = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What one engine is put through: `cases` of (batch, adapters, whether every other row stays on the base)."""

    tiny: bool
    device: torch.device
    dtype: torch.dtype
    cases: tuple[tuple[int, int, bool], ...]
    context: int
    steps: int
    memory: int
    deadline_s: float


def run_cases(settings: Settings, started: float) -> Iterator[dict[str, Any]]:
    """Build one engine and yield the record of every case that could be started before the deadline."""
    config = parse_config({**QWEN25_7B, **(TINY if settings.tiny else {})}, {})
    source = RandomSource(settings.device, settings.dtype, spread=0.06 if settings.tiny else 0.02)
    limits = StepLimits(tokens=128 if settings.tiny else 2048, sequences=max(batch for batch, _, _ in settings.cases))
    length = settings.context + _answer(settings, limits, limits.sequences)
    core = assemble(config, source, Placement(settings.device, settings.dtype, settings.memory, length, limits))
    count = max(adapters for _, adapters, _ in settings.cases)
    matrices = random_adapters(config, source, [RANKS[number % len(RANKS)] for number in range(count)])
    for number, adapter in enumerate(matrices):
        install(core, f"a{number:04d}", adapter)
    judge = Judge(core, PlainModel(config, source, torch.float32), PlainModel(config, source, settings.dtype), matrices)
    for batch, adapters, mixed in settings.cases:
        if time.monotonic() - started < settings.deadline_s:
            yield _Case(settings, core, judge).run(batch, adapters, mixed)


@dataclass(frozen=True, slots=True)
class _Case:
    settings: Settings
    core: EngineCore
    judge: Judge

    def run(self, batch: int, adapters: int, mixed: bool) -> dict[str, Any]:
        """Bring `batch` sequences to the context, time decode steps, check the logits of one more."""
        scheduler = self.core.scheduler
        residents = self._residents(batch, adapters, mixed)
        vocab = self.core.config.shape.vocab
        answer = _answer(self.settings, self.core.placement.limits, batch)
        for number, prompt in enumerate(prompts(batch, self.settings.context, vocab=vocab)):
            scheduler.submit(Sequence(str(number), prompt, answer, adapter=residents[number]))
        while any(sequence.pending > 1 for sequence in (*scheduler.waiting, *scheduler.running)) or scheduler.waiting:
            self._step()
        for _ in range(3):
            self._step()
        times = [self._step() for _ in range(self.settings.steps)]
        plan = scheduler.plan()
        assert plan is not None
        result = {
            "dtype": str(self.settings.dtype).removeprefix("torch."),
            "batch": batch,
            "adapters": adapters,
            "distinct": len(plan.adapters),
            "rank_sum": plan.rank_sum,
            "base_rows": sum(resident is None for resident in residents),
            "context": self.settings.context,
            "ms_per_step": round(statistics.median(times) * 1e3, 3),
            **self.judge.check(plan),
        }
        for sequence in list(scheduler.running):
            scheduler.remove(sequence)
        return result

    def _residents(self, batch: int, adapters: int, mixed: bool) -> list[Resident | None]:
        chosen: list[Resident | None] = [
            self.core.residency.get(f"a{number % adapters:04d}") if adapters else None for number in range(batch)
        ]
        return [None if mixed and number % 2 else resident for number, resident in enumerate(chosen)]

    def _step(self) -> float:
        """One whole step as the loop does it, from plan to tokens on the host; seconds."""
        started = time.perf_counter()
        plan = self.core.scheduler.plan()
        assert plan is not None
        tokens = self.core.runner.logits(plan).argmax(-1).tolist()
        self.core.scheduler.commit(plan, tokens)
        return time.perf_counter() - started


def _answer(settings: Settings, limits: StepLimits, batch: int) -> int:
    """Tokens every sequence may generate: those of the timed steps, and of the steps that bring the others' prompts."""
    return settings.steps + 8 + batch * settings.context // (limits.tokens - batch)
