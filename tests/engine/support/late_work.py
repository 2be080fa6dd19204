"""Counts what an engine compiles and captures before it is ready and afterwards, in a process that compiled nothing
before: `python -m tests.engine.support.late_work cuda` prints one line of JSON. Used by runner/test_late_work_gpu.py.
"""

import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lorafleet_engine.bench.engine import RandomSource, install, random_adapter
from lorafleet_engine.bench.workload import QWEN25_7B
from lorafleet_engine.messages import Generate, SamplingParams, StepLimits
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.runner.assembly import Placement, assemble
from tests.engine.support.driver import LoopDriver

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
}
LIMITS = StepLimits(tokens=256, sequences=40, distinct_adapters=16, rank_sum=1024)
WINDOW = 1024
RANKS = (1, 5, 8, 13, 16, 24, 48, 64, 128, 256)
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 1},
    {"temperature": 0.7, "top_k": 7},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.1},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.0, "logprobs": 5},
    {"temperature": 0.5, "logprobs": 0},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 0.6, "presence_penalty": 0.5, "frequency_penalty": 0.3},
)
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 31, 33, 40)
PROMPTS = (1, 2, 15, 16, 17, 63, 64, 100, 129, 255, 300)


@dataclass(slots=True)
class Counts:
    """Versions of Triton kernels that were not there yet, and captured graphs."""

    compiled: int = 0
    captured: int = 0


@contextmanager
def counted(cuda: bool) -> Iterator[Counts]:
    """Count from now on."""
    counts = Counts()
    if not cuda:
        yield counts
        return
    import triton

    def compiles(**_: object) -> None:
        counts.compiled += 1

    begin = torch.cuda.CUDAGraph.capture_begin

    def captures(graph: torch.cuda.CUDAGraph, *arguments: Any, **named: Any) -> None:
        counts.captured += 1
        begin(graph, *arguments, **named)

    triton.knobs.runtime.jit_cache_hook = compiles
    torch.cuda.CUDAGraph.capture_begin = captures  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        triton.knobs.runtime.jit_cache_hook = None
        torch.cuda.CUDAGraph.capture_begin = begin  # type: ignore[method-assign]


def main(device: str) -> None:
    """Start an engine, then bring it every rank, batch size, length of prompt and kind of sampling."""
    torch.set_num_threads(1)
    cuda = device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    config = parse_config({**QWEN25_7B, **SHAPE}, {})
    source = RandomSource(torch.device(device), dtype, spread=0.05)
    with counted(cuda) as before:
        placement = Placement(torch.device(device), dtype, 1 << 30, WINDOW, LIMITS, prefix_cache="shared")
        core = assemble(config, source, placement)
        core.runner.prepare()
    with tempfile.TemporaryDirectory() as folder, counted(cuda) as after:
        driver = LoopDriver(core, Path(folder))
        for number, rank in enumerate(RANKS):
            install(core, f"a{rank}", random_adapter(config, source, number, rank))
        finished = sum(len(_serve(driver, requests)) for requests in _batches())
        core.close()
    print(
        json.dumps(
            {
                "compiled_before": before.compiled,
                "captured_before": before.captured,
                "compiled_after": after.compiled,
                "captured_after": after.captured,
                "finished": finished,
            }
        )
    )


def _serve(driver: LoopDriver, requests: list[Generate]) -> dict[str, object]:
    answers = driver.run(requests)
    assert all(answer.finish == "length" for answer in answers.values()), answers
    driver.mailbox.outbox.clear()
    return dict(answers)


def _batches() -> Iterator[list[Generate]]:
    """Every batch size with every rank, alone and mixed; every kind of sampling; answers from short to long."""
    dice, names = random.Random(3), itertools.count()
    keys = [None, *(f"a{rank}" for rank in RANKS)]

    def ask(key: str | None, sampling: dict[str, Any], length: int, answer: int) -> Generate:
        prompt = tuple(dice.randrange(SHAPE["vocab_size"]) for _ in range(length))
        return Generate(str(next(names)), key, prompt, SamplingParams(answer, ignore_eos=True, **sampling))

    for size in SIZES:
        yield [ask(keys[row % len(keys)], SAMPLING[0], dice.choice(PROMPTS), 3) for row in range(size)]
        yield [ask(None, SAMPLING[row % len(SAMPLING)], dice.choice(PROMPTS), 3) for row in range(size)]
    for key in keys:
        yield [ask(key, SAMPLING[0], length, 4) for length in PROMPTS[::3]]
        yield [ask(key, sampling, 20, 2) for sampling in SAMPLING]
    yield [ask("a16", SAMPLING[0], 700, 300), ask(None, SAMPLING[1], 600, 200)]
    same = ask("a5", SAMPLING[0], 200, 2)
    for name in ("same", "again"):
        yield [Generate(name, same.adapter, same.prompt_ids, same.params)]


if __name__ == "__main__":
    main(sys.argv[1])
