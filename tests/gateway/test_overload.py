"""What the gateway does when it is full: it refuses in the API's shape, and works again as soon as there is room."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from lorafleet_gateway.shell.envoy_files import write_bootstrap
from tests.gateway.doubles.stack import Stack, make_key, run_stack, until

pytestmark = pytest.mark.envoy

ACME = make_key("acme", "t")
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "hi"}]}


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with run_stack(tmp_path, engines=1) as running:
        yield running


async def restart_envoy(stack: Stack, **limits: int) -> None:
    """Start Envoy anew with other limits."""
    stack.stop("envoy")
    write_bootstrap(replace(stack.settings, **limits))
    stack.start_envoy()
    await until(lambda: listens(stack))


async def listens(stack: Stack) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", stack.settings.listen_port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def serves(stack: Stack) -> bool:
    return (await stack.post(ACME, CHAT)).status == 200


async def test_at_the_end_of_its_memory_requests_get_503(stack: Stack) -> None:
    await restart_envoy(stack, envoy_memory=1 << 20)  # less than it takes without any work
    await until(lambda: refuses(stack))
    await restart_envoy(stack, envoy_memory=512 << 20)
    await until(lambda: serves(stack))


async def refuses(stack: Stack) -> bool:
    reply = await stack.post(ACME, CHAT)
    if reply.status == 200:  # its memory has not been looked at yet
        return False
    assert (reply.status, reply.body["error"]["code"]) == (503, "gateway_overloaded")
    assert reply.headers["retry-after"] == "1"
    return True


async def test_connections_above_the_limit_are_closed_and_the_others_served(stack: Stack) -> None:
    await restart_envoy(stack, max_connections=5)
    await until(lambda: serves(stack))  # one connection, which the client keeps
    async with AsyncExitStack() as exits:
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", stack.settings.listen_port)
            exits.callback(writer.close)
        await asyncio.sleep(0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.settings.listen_port)
        exits.callback(writer.close)
        async with asyncio.timeout(5):
            assert await closed(reader)
        assert await serves(stack)
    await until(lambda: admits(stack))


async def admits(stack: Stack) -> bool:
    """Whether a new connection is left open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.settings.listen_port)
    try:
        await asyncio.wait_for(closed(reader), 0.5)
    except TimeoutError:
        return True
    finally:
        writer.close()
    return False


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True
