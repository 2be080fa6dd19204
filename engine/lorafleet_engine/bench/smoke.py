"""`make gpu-smoke`: decode steps of the 7B shape on one GPU, timed, and their logits checked against a plain model.

Run as `python -m lorafleet_engine.bench.smoke`. Prints one line of JSON as its last line and exits non-zero when any
case failed or its logits are off. Everything goes through the engine's scheduler, memory and runner, whose decode steps
are CUDA graphs. `--tiny` does the same with a small model, also on a CPU. Needs torch and safetensors only.
"""

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lorafleet_engine.bench.engine import RandomSource, install, random_adapters
from lorafleet_engine.bench.plain import AdapterMatrices, PlainModel
from lorafleet_engine.bench.workload import QWEN25_7B, RANKS, prompts
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.runner.assembly import EngineCore, Placement, assemble
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan

REL_L2_BOUND = 2e-2
ROWS_CHECKED = 8
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
    """What is run: `cases` of (batch, adapters, whether every other row stays on the base)."""

    tiny: bool
    device: torch.device
    dtype: torch.dtype
    cases: tuple[tuple[int, int, bool], ...]
    context: int
    steps: int
    memory: int
    deadline_s: float


def main(arguments: list[str] | None = None) -> int:
    """Run all cases within the deadline and print the line. Returns the exit status."""
    settings = _settings(arguments)
    started = time.monotonic()
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if settings.device.type == "cuda" else "cpu",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "shape": "tiny" if settings.tiny else "qwen2.5-7b",
        "dtype": str(settings.dtype).removeprefix("torch."),
        "cases": [],
    }
    try:
        for case in _run(settings, started):
            print(json.dumps(case), file=sys.stderr, flush=True)
            record["cases"].append(case)
    except Exception as error:  # noqa: BLE001  (what was measured so far is still worth its line)
        record["error"] = f"{type(error).__name__}: {error}"
    record["seconds"] = round(time.monotonic() - started, 1)
    record["ok"] = "error" not in record and all(case["ok"] for case in record["cases"])
    record["complete"] = len(record["cases"]) == len(settings.cases)
    print(json.dumps(record), flush=True)
    return 0 if record["ok"] and record["complete"] else 1


def _settings(arguments: list[str] | None) -> Settings:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a small model, for a quick look or a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--steps", type=int, default=48, help="decode steps timed in each case")
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--adapters", default="0,8,32")
    parser.add_argument("--memory-gb", type=float, default=48.0)
    parser.add_argument("--deadline", type=float, default=220.0, help="seconds after which no case is started")
    given = parser.parse_args(arguments)
    batches, adapters = ([int(number) for number in text.split(",")] for text in (given.batches, given.adapters))
    cases = [(batch, count, False) for batch in batches for count in adapters]
    if len(batches) > 1 and max(adapters):
        cases.append((batches[1], max(adapters), True))
    return Settings(
        tiny=given.tiny,
        device=torch.device(given.device),
        dtype=getattr(torch, given.dtype),
        cases=tuple(cases),
        context=40 if given.tiny else 200,
        steps=given.steps,
        memory=int(1e9 if given.tiny else given.memory_gb * 1e9),
        deadline_s=given.deadline,
    )


def _run(settings: Settings, started: float) -> Iterator[dict[str, Any]]:
    config = parse_config({**QWEN25_7B, **(TINY if settings.tiny else {})}, {})
    source = RandomSource(settings.device, settings.dtype, spread=0.06 if settings.tiny else 0.02)
    limits = StepLimits(tokens=128 if settings.tiny else 2048, sequences=max(batch for batch, _, _ in settings.cases))
    length = settings.context + _answer(settings, limits, limits.sequences)
    core = assemble(config, source, Placement(settings.device, settings.dtype, settings.memory, length, limits))
    count = max(adapters for _, adapters, _ in settings.cases)
    matrices = random_adapters(config, source, [RANKS[number % len(RANKS)] for number in range(count)])
    for number, adapter in enumerate(matrices):
        install(core, f"a{number:04d}", adapter)
    plain = PlainModel(config, source)
    for batch, adapters, mixed in settings.cases:
        if time.monotonic() - started < settings.deadline_s:
            yield _Case(settings, core, plain, matrices).run(batch, adapters, mixed)


@dataclass(frozen=True, slots=True)
class _Case:
    settings: Settings
    core: EngineCore
    plain: PlainModel
    matrices: list[dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]]

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
            "batch": batch,
            "adapters": adapters,
            "distinct": len(plan.adapters),
            "rank_sum": plan.rank_sum,
            "base_rows": sum(resident is None for resident in residents),
            "context": self.settings.context,
            "ms_per_step": round(statistics.median(times) * 1e3, 3),
            **self._check(plan),
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

    def _check(self, plan: StepPlan) -> dict[str, Any]:
        """Compare the step's logits with the plain model's, for rows spread over the batch, and with the eager step."""
        logits = self.core.runner.logits(plan).clone()
        same = torch.equal(logits, self.core.runner.eager_logits(plan)) if logits.is_cuda else None
        count = len(plan.works)
        rows = sorted({round(at * (count - 1) / max(ROWS_CHECKED - 1, 1)) for at in range(ROWS_CHECKED)})
        sequences = [plan.works[row].sequence for row in rows]
        adapters: list[AdapterMatrices | None] = [
            None if sequence.adapter is None else self.matrices[int(sequence.adapter.key[1:])] for sequence in sequences
        ]
        wanted = self.plain.logits([sequence.tokens for sequence in sequences], adapters)
        got = logits[rows].float()
        error = ((got - wanted).norm() / wanted.norm()).item()
        worst = ((got - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max().item()
        match = (got.argmax(-1) == wanted.argmax(-1)).float().mean().item()
        return {
            "rows_checked": len(rows),
            "rel_l2": round(error, 6),
            "rel_l2_worst_row": round(worst, 6),
            "argmax_match": round(match, 4),
            "graph_equals_eager": same,
            "ok": error <= REL_L2_BOUND and same is not False,
        }


def _answer(settings: Settings, limits: StepLimits, batch: int) -> int:
    """Tokens every sequence may generate: those of the timed steps, and of the steps that bring the others' prompts."""
    return settings.steps + 8 + batch * settings.context // (limits.tokens - batch)


if __name__ == "__main__":
    sys.exit(main())
