"""Clients that send or read slowly cost the gateway little, and others nothing."""

import asyncio
import json
import time
from contextlib import AsyncExitStack

import pytest

from tests.gateway.doubles.engine import Mood
from tests.gateway.doubles.stack import REQUEST_SECONDS, Stack, make_key, until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

ACME = make_key("acme", "t")
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "hi"}]}
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ACME}\r\n".encode()
READERS = 8
MIB = 1 << 20


@pytest.mark.parametrize(
    "begun",
    [b"POST /v1/chat", HEAD, HEAD + b"content-length: 1000\r\n\r\n{"],
    ids=["in the request line", "in the headers", "in the body"],
)
async def test_whoever_sends_slowly_is_ended_and_holds_nobody_up(stack: Stack, begun: bytes) -> None:
    async with AsyncExitStack() as exits:
        connections = []
        for _ in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", stack.settings.listen_port)
            exits.callback(writer.close)
            writer.write(begun)
            connections.append(reader)
        started = time.monotonic()
        assert (await stack.post(ACME, CHAT)).status == 200
        assert time.monotonic() - started < 1
        async with asyncio.timeout(REQUEST_SECONDS + 3):
            answers = await asyncio.gather(*(reader.read() for reader in connections))
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 408 ")
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (error["code"], error["type"]) == ("request_timeout", "invalid_request_error")
        assert f"{REQUEST_SECONDS} s" in error["message"]


async def test_slow_readers_hold_their_engine_up_and_no_memory(stack: Stack) -> None:
    for engine in stack.engines:
        engine.mood = Mood.FLOOD
        engine.flooded = 0
    before = await envoy_memory(stack)
    body = json.dumps({**CHAT, "stream": True}).encode()
    request = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    async with AsyncExitStack() as exits:
        readers = []
        for _ in range(READERS):
            reader, writer = await asyncio.open_connection("127.0.0.1", stack.settings.listen_port, limit=1024)
            exits.callback(writer.close)
            writer.write(request)
            readers.append(reader)
        await until(lambda: stalls(stack))
        assert await envoy_memory(stack) - before < READERS * 2 * MIB
        for engine in stack.engines:
            engine.mood = Mood.ANSWER
        assert (await stack.post(ACME, CHAT)).status == 200
        for reader in readers:  # nothing is lost for those who read on after all
            assert (await read_all(reader)).endswith(b"0\r\n\r\n")


async def stalls(stack: Stack) -> bool:
    """Whether the engines have sent something and get rid of no more."""
    before = [engine.flooded for engine in stack.engines]
    await asyncio.sleep(1)
    return sum(before) > 0 and before == [engine.flooded for engine in stack.engines]


async def envoy_memory(stack: Stack) -> int:
    """Bytes that Envoy has allocated."""
    async with stack.client.get(f"http://127.0.0.1:{stack.settings.envoy_admin_port}/memory") as response:
        return int((await response.json(content_type=None))["allocated"])


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """The end of a chunked answer."""
    end = b""
    while not end.endswith(b"\r\n0\r\n\r\n"):
        part = await asyncio.wait_for(reader.read(1 << 16), 10)
        assert part
        end = (end + part)[-16:]
    return end
