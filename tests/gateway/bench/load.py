"""The benchmark's client: requests at a rate, whether or not earlier ones were answered, and counted streams."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import aiohttp
import orjson

from tests.gateway.bench.stage import ADAPTERS, ENGINE_NAME, adapter_name

EVENT_END = b"\n\n"
PROMPT = "word " * 200


@dataclass(frozen=True, slots=True)
class Client:
    """A way to the engines: `urls` are asked in turn, with `key`, those with https in the engines' name."""

    http: aiohttp.ClientSession
    urls: Sequence[str]
    key: str


async def time_requests(client: Client, rate: float, seconds: float) -> list[float]:
    """Latencies in milliseconds of requests sent `rate` a second, each from the moment that it was due."""
    start = time.perf_counter()
    tasks = []
    for number in range(int(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(due - time.perf_counter())
        tasks.append(asyncio.create_task(_ask(client, number, due)))
    return await asyncio.gather(*tasks)


async def count_chunks(client: Client, streams: int, chunks: int) -> float:
    """Events a second over `streams` parallel streams of `chunks` events each."""
    start = time.perf_counter()
    counts = await asyncio.gather(*(_read_stream(client, number, chunks) for number in range(streams)))
    assert counts == [chunks + 1] * streams, "a stream lost events"
    return streams * chunks / (time.perf_counter() - start)


async def _ask(client: Client, number: int, due: float) -> float:
    async with _post(client, number, _body(number)) as response:
        await response.read()
        assert response.status == 200, await response.text()
    return (time.perf_counter() - due) * 1000


async def _read_stream(client: Client, number: int, chunks: int) -> int:
    body = _body(number, stream=True, max_tokens=chunks)
    found = 0
    last = b""
    async with _post(client, number, body) as response:
        assert response.status == 200, await response.text()
        async for part in response.content.iter_any():
            found += (last + part).count(EVENT_END)
            last = b"" if part.endswith(EVENT_END) else part[-1:]
    return found


def _post(client: Client, number: int, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    url = client.urls[number % len(client.urls)] + "/v1/chat/completions"
    headers = {"authorization": f"Bearer {client.key}", "content-type": "application/json"}
    return client.http.post(url, data=body, headers=headers, server_hostname=ENGINE_NAME)


def _body(number: int, **fields: object) -> bytes:
    messages = [{"role": "user", "content": PROMPT}]
    return orjson.dumps({"model": adapter_name(number * 7 % ADAPTERS), "messages": messages, **fields})
