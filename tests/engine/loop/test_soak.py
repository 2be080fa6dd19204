"""Random traffic with versions coming and going: every answer is the one its version gives alone, and nothing leaks."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.messages import BlobRef, Cancel, LoadAdapter, StepLimits, ToLoop, UnloadAdapter
from tests.engine.loop.conftest import Ask
from tests.engine.support.driver import Answer, LoopDriver, collect
from tests.engine.support.tiny import TinyModel

KINDS = ("odd-r5", "narrow-qv", "patterns", "layers", "attention-r4")
PROMPTS = ((4, 5), tuple(range(20, 57)), tuple(range(90, 190)))
LENGTH = 14
Case = tuple[str | None, int]


@pytest.mark.parametrize(("seed", "overlapped"), [(0, False), (1, False), (1, True), (2, True)])
def test_random_traffic(
    seed: int,
    overlapped: bool,
    start: Callable[..., LoopDriver],
    memory_for: Callable[[LoopDriver, int], int],
    model: TinyModel,
    ask: Ask,
    tmp_path: Path,
) -> None:
    calm = start()
    blobs = {
        kind: pack_adapter(model.adapters[kind], calm.core.config.shape, "float32").write(tmp_path / kind)
        for kind in KINDS
    }
    calm.post(*(LoadAdapter(kind, blob) for kind, blob in blobs.items()))
    alone = {
        (kind, number): calm.run([ask("x", kind, prompt, max_tokens=LENGTH)])["x"].tokens
        for kind in (None, *KINDS)
        for number, prompt in enumerate(PROMPTS)
    }
    limits = StepLimits(tokens=24, sequences=6, distinct_adapters=2, rank_sum=30)
    driver = start(limits, overlapped, memory_bytes=memory_for(start(limits), 40))
    dice = random.Random(seed)
    asked: dict[str, Case] = {}
    for turn in range(250):
        driver.post(*random_messages(dice, str(turn), asked, blobs, ask))
    driver.post(*(UnloadAdapter(kind) for kind in KINDS))
    for _ in range(2000):
        if driver.state.running or driver.state.waiting:
            driver.post()
    ends = check(collect(driver.mailbox.outbox), asked, alone)
    assert ends >= {"length", "cancelled", "version_missing"}
    assert driver.core.pages.free == driver.core.pages.total
    assert driver.state.adapter_bytes == 0
    assert driver.state.versions == ()


def random_messages(
    dice: random.Random, name: str, asked: dict[str, Case], blobs: dict[str, BlobRef], ask: Ask
) -> list[ToLoop]:
    kind = dice.choice(KINDS)
    match dice.choice(["ask", "ask", "base", "load", "load", "unload", "cancel", "wait", "wait", "wait"]):
        case "ask" | "base" as what:
            asked[name] = (kind if what == "ask" else None, dice.randrange(len(PROMPTS)))
            chosen, number = asked[name]
            return [ask(name, chosen, PROMPTS[number], max_tokens=LENGTH)]
        case "load":
            return [LoadAdapter(kind, blobs[kind])]
        case "unload":
            return [UnloadAdapter(kind)]
        case "cancel" if asked:
            return [Cancel(dice.choice(list(asked)))]
    return []


def check(answers: dict[str, Answer], asked: dict[str, Case], alone: dict[Case, list[int]]) -> set[str | None]:
    """Every answer is the one given alone, or its beginning if it was cancelled. Returns the ways they ended."""
    for name, case in asked.items():
        answer, expected = answers[name], alone[case]
        if answer.finish == "length":
            assert answer.tokens == expected
        else:
            assert answer.finish in ("cancelled", "version_missing")
            assert answer.tokens == expected[: len(answer.tokens)]
    return {answers[name].finish for name in asked}
