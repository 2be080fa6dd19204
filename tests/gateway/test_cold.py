"""Requests for an adapter that no replica holds yet wait, a little, few of them, and at nobody else's cost."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lorafleet_contracts.admin import Tier
from tests.gateway.doubles.kubernetes import ADAPTERS
from tests.gateway.doubles.stack import COLD_SECONDS, Reply, Stack, digest, make_key, put_adapter, until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

ACME = make_key("acme", "t")
PIRATE, BUTLER = f"uid-pirate@{digest('a')}", f"uid-butler@{digest('b')}"
ARCTIC = f"uid-arctic@{digest('e')}"
LINE = 32


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def cold(stack: Stack) -> AsyncIterator[None]:
    """An adapter with a version that no engine holds."""
    put_adapter(stack, "acme", "arctic", digest("e"))
    await until(lambda: exists(stack))
    yield
    for engine in stack.engines:
        engine.show({PIRATE: Tier.GPU, BUTLER: Tier.GPU}, full=True)
    stack.kubernetes.delete(ADAPTERS, "acme", "arctic")
    await until(lambda: gone(stack))


async def exists(stack: Stack) -> bool:
    return (await stack.get(ACME, "/v1/models/arctic")).status == 200


async def gone(stack: Stack) -> bool:
    return (await stack.get(ACME, "/v1/models/arctic")).status == 404


async def ask(stack: Stack) -> Reply:
    return await stack.post(ACME, {"model": "arctic"})


async def waiting(stack: Stack, count: int) -> bool:
    return await stack.metric("lorafleet_gateway_cold_waiting") == count


async def test_they_are_answered_once_a_replica_holds_it(stack: Stack) -> None:
    asked = [asyncio.create_task(ask(stack)) for _ in range(5)]
    await until(lambda: waiting(stack, 5))
    stack.engines[1].show({PIRATE: Tier.GPU, BUTLER: Tier.GPU, ARCTIC: Tier.GPU})
    replies = await asyncio.gather(*asked)
    assert [reply.status for reply in replies] == [200] * 5
    assert [each.headers["x-lorafleet-model"] for each in stack.engines[1].arrivals] == [ARCTIC] * 5
    assert not stack.engines[0].arrivals


async def test_they_follow_a_version_that_moves_meanwhile(stack: Stack) -> None:
    newer = f"uid-arctic@{digest('f')}"
    stack.engines[0].show({PIRATE: Tier.GPU, BUTLER: Tier.GPU, newer: Tier.HOST})
    asked = asyncio.create_task(ask(stack))
    await until(lambda: waiting(stack, 1))
    put_adapter(stack, "acme", "arctic", digest("f"))
    assert (await asked).status == 200
    assert stack.engines[0].arrivals[0].headers["x-lorafleet-model"] == newer


async def test_the_wait_ends_with_a_503_that_says_when_to_come_back(stack: Stack) -> None:
    started = time.monotonic()
    reply = await ask(stack)
    assert COLD_SECONDS - 0.2 <= time.monotonic() - started <= COLD_SECONDS + 1
    assert (reply.status, reply.body["error"]["code"]) == (503, "adapter_not_ready")
    assert int(reply.headers["retry-after"]) > 0


async def test_a_full_line_refuses_at_once_and_warm_requests_pass_by(stack: Stack) -> None:
    asked = [asyncio.create_task(ask(stack)) for _ in range(LINE)]
    await until(lambda: waiting(stack, LINE), 1.5)
    started = time.monotonic()
    refused = await ask(stack)
    warm = await stack.post(ACME, {"model": "pirate"})
    assert time.monotonic() - started < 0.5
    assert (refused.status, refused.body["error"]["code"]) == (503, "adapter_queue_full")
    assert int(refused.headers["retry-after"]) > 0
    assert warm.status == 200
    assert {reply.status for reply in await asyncio.gather(*asked)} == {503}
    assert await waiting(stack, 0)


async def test_deleting_the_adapter_ends_the_wait_with_404(stack: Stack) -> None:
    asked = asyncio.create_task(ask(stack))
    await until(lambda: waiting(stack, 1))
    stack.kubernetes.delete(ADAPTERS, "acme", "arctic")
    reply = await asked
    assert reply.status == 404
    put_adapter(stack, "acme", "arctic", digest("e"))  # for the fixture to remove
