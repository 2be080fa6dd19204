"""The loop at the other end of a real pipe."""

import threading
from multiprocessing import Pipe
from pathlib import Path

from lorafleet_contracts.names import EXIT_BASE_DOES_NOT_FIT
from lorafleet_engine.loop_process import run_loop
from lorafleet_engine.messages import (
    Generate,
    LoopConfig,
    LoopFailed,
    LoopReady,
    LoopState,
    SamplingParams,
    StepTokens,
    Tokens,
)
from tests.engine.support.tiny import TinyModel


def test_answers_over_a_pipe_and_ends_with_it(model: TinyModel) -> None:
    ours, theirs = Pipe()
    settings = LoopConfig(str(model.directory), max_model_len=64, memory_bytes=32 << 20)
    thread = threading.Thread(target=run_loop, args=(theirs, settings), daemon=True)
    thread.start()
    ready = ours.recv()
    assert isinstance(ready, LoopReady)
    assert (ready.max_model_len, ready.vocab_size, ready.eos_token_ids) == (64, 320, ())
    ours.send(Generate("a", None, (1, 2, 3), SamplingParams(4, temperature=0)))
    seen: list[Tokens | StepTokens] = []
    states = 0
    while not seen or not isinstance(seen[-1], Tokens) or seen[-1].finish_reason is None:
        message = ours.recv()
        states += isinstance(message, LoopState)
        if isinstance(message, Tokens | StepTokens):
            seen.append(message)
    assert len(seen) == 4
    ours.close()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_failure_to_start_is_told(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    run_loop(theirs, LoopConfig(str(tmp_path), memory_bytes=1 << 20))
    failed = ours.recv()
    assert isinstance(failed, LoopFailed)
    assert "mamba" in failed.message
    assert failed.status == 1


def test_memory_too_small_is_told(model: TinyModel) -> None:
    ours, theirs = Pipe()
    run_loop(theirs, LoopConfig(str(model.directory), max_model_len=64, memory_bytes=100_000))
    failed = ours.recv()
    assert isinstance(failed, LoopFailed)
    assert "100000" in failed.message
    assert failed.status == EXIT_BASE_DOES_NOT_FIT
