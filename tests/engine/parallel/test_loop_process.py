"""The loop's process with a follower: what is left of one when the other ends."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lorafleet_engine.messages import Generate, LoopConfig, LoopFailed, LoopReady, SamplingParams, Tokens
from lorafleet_engine.server.children import Child
from tests.engine.support.tiny import TinyModel


@pytest.fixture
def settings(tiny: Callable[[str], TinyModel]) -> LoopConfig:
    return LoopConfig(str(tiny("llama").directory), max_model_len=256, memory_bytes=128 << 20, tensor_parallel=2)


async def _start(settings: LoopConfig) -> tuple[Child, int]:
    """The loop's process, answering, and the id of its follower's."""
    child = await Child.start("loop")
    child.send(settings)
    assert isinstance(await child.receive(), LoopReady)
    child.send(Generate("a", None, (1, 2, 3), SamplingParams(4, temperature=0)))
    message = None
    while not (isinstance(message, Tokens) and message.finish_reason):
        message = await child.receive()
    return child, _follower(child.pid)


def _follower(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = (int(each) for each in children if b"follower" in Path(f"/proc/{each}/cmdline").read_bytes())
    return found


def _lives(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def _last_words(child: Child) -> str:
    words = ""
    try:
        while True:
            message = await child.receive()
            words = message.message if isinstance(message, LoopFailed) else words
    except EOFError:
        return words


@pytest.mark.heavy
@pytest.mark.parametrize("busy", [False, True])
async def test_a_follower_that_dies_ends_the_loop_with_a_reason(settings: LoopConfig, busy: bool) -> None:
    child, follower = await _start(settings)
    if busy:
        child.send(Generate("b", None, (1, 2, 3), SamplingParams(250, temperature=0)))
        await child.receive()
    os.kill(follower, signal.SIGKILL)
    words = await asyncio.wait_for(_last_words(child), 20)
    assert words == "tensor parallelism: rank 1 ended with status -9"
    await child.end()


@pytest.mark.heavy
async def test_a_follower_ends_with_the_loop(settings: LoopConfig) -> None:
    child, follower = await _start(settings)
    os.kill(child.pid, signal.SIGKILL)
    await child.end()
    for _ in range(200):
        if not _lives(follower):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the follower lives on")


@pytest.mark.heavy
async def test_a_follower_that_cannot_start_is_told(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    """The weights of the follower's share cannot be read: the message says which rank and why."""
    model = tiny("llama")
    (tmp_path / "config.json").write_bytes((model.directory / "config.json").read_bytes())
    child = await Child.start("loop")
    child.send(LoopConfig(str(tmp_path), max_model_len=64, memory_bytes=64 << 20, tensor_parallel=2))
    words = await asyncio.wait_for(_last_words(child), 60)
    assert "the weights cannot be opened" in words
    await child.end()
