"""A client that goes away ends its work within a second: at an engine, or in a cold adapter's line."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from tests.gateway.doubles.engine import Mood
from tests.gateway.doubles.http2 import connect_http2
from tests.gateway.doubles.stack import Stack, digest, make_key, put_adapter, until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

HEADERS = {"authorization": f"Bearer {make_key('acme', 't')}"}
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"
SECONDS = 1.0


@asynccontextmanager
async def asked_by_http1(stack: Stack, body: dict[str, Any]) -> AsyncIterator[None]:
    """A request while the block runs; it is given up by closing its connection."""

    async def ask() -> None:
        async with (
            aiohttp.ClientSession(headers=HEADERS) as http,
            http.post(stack.url + PATH, json=body) as response,
        ):
            await response.read()

    asking = asyncio.create_task(ask())
    yield
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking


@asynccontextmanager
async def asked_by_http2(stack: Stack, body: dict[str, Any]) -> AsyncIterator[None]:
    """A request while the block runs; it is given up by resetting its stream, on a connection that stays."""
    async with connect_http2(stack.settings.listen_port) as client:
        stream = client.post(PATH, HEADERS, body)
        yield
        client.reset(stream)
        await asyncio.sleep(SECONDS)


both = pytest.mark.parametrize("asked", [asked_by_http1, asked_by_http2])
Asked = Callable[[Stack, dict[str, Any]], Any]


@both
@pytest.mark.parametrize("mood", [Mood.ANSWER, Mood.HOLD], ids=["in the middle", "before the first byte"])
async def test_leaving_a_stream_cancels_it_at_the_engine(stack: Stack, asked: Asked, mood: Mood) -> None:
    for engine in stack.engines:
        engine.mood = mood
        engine.gate.clear()
    leaving = asyncio.Event()

    async def ask() -> None:
        async with asked(stack, {**CHAT, "stream": True}):
            await until(lambda: arrived(stack))
            await asyncio.sleep(0.1)
            leaving.set()

    task = asyncio.create_task(ask())
    await leaving.wait()
    await until(lambda: cancelled(stack), SECONDS)
    await task


@both
async def test_leaving_a_plain_request_cancels_it_at_the_engine(stack: Stack, asked: Asked) -> None:
    for engine in stack.engines:
        engine.mood = Mood.HOLD
        engine.gate.clear()
    leaving = asyncio.Event()

    async def ask() -> None:
        async with asked(stack, CHAT):
            await until(lambda: arrived(stack))
            leaving.set()

    task = asyncio.create_task(ask())
    await leaving.wait()
    await until(lambda: cancelled(stack), SECONDS)
    await task


@both
async def test_leaving_the_line_of_a_cold_adapter_frees_the_place(stack: Stack, asked: Asked) -> None:
    put_adapter(stack, "acme", "arctic", digest("e"))
    await until(lambda: exists(stack, "arctic"))
    leaving = asyncio.Event()

    async def ask() -> None:
        async with asked(stack, {**CHAT, "model": "arctic"}):
            await until(lambda: waiting(stack, 1))
            leaving.set()

    task = asyncio.create_task(ask())
    await leaving.wait()
    await until(lambda: waiting(stack, 0), SECONDS)
    await task


async def arrived(stack: Stack) -> bool:
    return any(engine.arrivals for engine in stack.engines)


async def cancelled(stack: Stack) -> bool:
    return any(engine.cancelled.is_set() for engine in stack.engines)


async def exists(stack: Stack, model: str) -> bool:
    return (await stack.get(make_key("acme", "t"), f"/v1/models/{model}")).status == 200


async def waiting(stack: Stack, count: int) -> bool:
    return await stack.metric("lorafleet_gateway_cold_waiting") == count
