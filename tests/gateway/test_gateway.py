"""The gateway as a client sees it: real Envoy, real picker, doubles of the API server and of the engines."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from lorafleet_contracts.admin import Tier
from tests.gateway.doubles.engine import Mood
from tests.gateway.doubles.stack import MAX_BODY, SERVING_TOKEN, Stack, digest, make_key, put_slice, until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

ACME, GLOBEX = make_key("acme", "t"), make_key("globex", "t")
PIRATE, BUTLER = f"uid-pirate@{digest('a')}", f"uid-butler@{digest('b')}"
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_request_reaches_an_engine_with_version_tenant_and_token(stack: Stack) -> None:
    reply = await stack.post(ACME, CHAT)
    assert reply.status == 200
    (arrival,) = stack.engines[0].arrivals + stack.engines[1].arrivals
    assert arrival.body == CHAT
    assert arrival.headers["x-lorafleet-model"] == PIRATE
    assert arrival.headers["x-lorafleet-tenant"] == "acme/t"
    assert arrival.headers["x-lorafleet-gateway"] == "gateway-1"
    assert arrival.headers["authorization"] == f"Bearer {SERVING_TOKEN}"
    assert arrival.headers["x-request-id"] == reply.headers["x-request-id"]
    assert arrival.header_names.count("authorization") == 1


async def test_what_a_client_spoofs_never_arrives(stack: Stack) -> None:
    other = f"127.0.0.1:{stack.engines[0].serving}"
    spoofed = {
        "x-lorafleet-model": BUTLER,
        "X-LoraFleet-Tenant": "globex/t",
        "x-lorafleet-gateway": "mine",
        "x-lorafleet-cluster": "nowhere",
        "x-lorafleet-anything": "x",
        "x-gateway-destination-endpoint": other,
        "x-envoy-max-retries": "9",
        "x-envoy-original-dst-host": other,
    }
    await stack.post(ACME, CHAT, headers=spoofed)
    (arrival,) = stack.engines[0].arrivals + stack.engines[1].arrivals
    ours = {name: value for name, value in arrival.headers.items() if name.lower().startswith("x-lorafleet-")}
    assert ours == {
        "x-lorafleet-model": PIRATE,
        "x-lorafleet-tenant": "acme/t",
        "x-lorafleet-gateway": "gateway-1",
    }
    assert not [name for name in arrival.header_names if name.startswith(("x-gateway-", "x-envoy-max", "x-envoy-or"))]


async def test_a_foreign_and_a_missing_name_are_the_same_404(stack: Stack) -> None:
    foreign = await stack.post(ACME, {**CHAT, "model": "butler"})
    missing = await stack.post(ACME, {**CHAT, "model": "absent"})
    assert foreign.status == missing.status == 404
    assert foreign.body["error"]["code"] == "model_not_found"
    assert str(foreign.body).replace("butler", "NAME") == str(missing.body).replace("absent", "NAME")
    assert (await stack.post(GLOBEX, {**CHAT, "model": "smollm2"})).status == 404
    assert not stack.engines[0].arrivals + stack.engines[1].arrivals


@pytest.mark.parametrize(
    "key",
    ["", "sk-other", make_key("acme", "t", 2), make_key("acme", "t", 3), make_key("acme", "nobody"), GLOBEX + "x"],
)
async def test_wrong_expired_and_unknown_keys_are_one_401(stack: Stack, key: str) -> None:
    reply = await stack.post(key, CHAT)
    assert reply.status == 401
    assert reply.body["error"]["code"] == "invalid_api_key"
    assert reply.headers["content-type"] == "application/json"


async def test_an_adapter_without_a_version_is_503_with_retry_after(stack: Stack) -> None:
    reply = await stack.post(ACME, {**CHAT, "model": "cold"})
    assert (reply.status, reply.body["error"]["code"]) == (503, "adapter_not_ready")
    assert int(reply.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("body", "param"),
    [(b"{", None), (b"[]", None), (b"", None), (b'{"messages": []}', "model"), (b'{"model": 7}', "model")],
)
async def test_unusable_bodies_are_400(stack: Stack, body: bytes, param: str | None) -> None:
    reply = await stack.post(ACME, body)
    assert (reply.status, reply.body["error"]["param"]) == (400, param)
    assert reply.body["error"]["type"] == "invalid_request_error"


async def test_unknown_urls_and_methods(stack: Stack) -> None:
    assert (await stack.get(ACME, "/v1/embeddings")).body["error"]["code"] == "unknown_url"
    assert (await stack.get(ACME, "/")).status == 404
    wrong = await stack.get(ACME, "/v1/chat/completions")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert (await stack.post(ACME, CHAT, path="/v1/models")).status == 405


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_above_the_limit_is_413(stack: Stack, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * (MAX_BODY // 2)

    body = chunks() if chunked else b" " * (MAX_BODY + 1)
    async with stack.client.post(
        f"{stack.url}/v1/completions", data=body, headers={"authorization": f"Bearer {ACME}"}
    ) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "request_too_large"


async def test_a_large_body_passes_whole_and_can_be_retried(stack: Stack) -> None:
    first, second = await order(stack)
    stack.engines[first].mood = Mood.LACK_VERSION
    text = "x" * (MAX_BODY * 9 // 10)
    reply = await stack.post(ACME, {**CHAT, "text": text})
    assert reply.status == 200
    assert stack.engines[second].arrivals[-1].body["text"] == text


async def order(stack: Stack) -> tuple[int, int]:
    """Which engine the next request goes to, and the other: the first choices alternate between equals."""
    name = await stack.served_by(ACME, "pirate")
    for engine in stack.engines:
        engine.arrivals.clear()
    return (1, 0) if name == "e0" else (0, 1)


@pytest.mark.parametrize("mood", [Mood.LACK_VERSION, Mood.RESET])
async def test_a_failed_first_choice_is_retried_on_the_next(stack: Stack, mood: Mood) -> None:
    for _ in range(2):  # whichever comes first
        first, second = await order(stack)
        stack.engines[first].mood = mood
        reply = await stack.post(ACME, CHAT)
        assert reply.status == 200
        assert "x-lorafleet-retry" not in reply.headers
        assert [len(stack.engines[each].arrivals) for each in (first, second)] == [1, 1]
        assert stack.engines[second].arrivals[0].headers["x-lorafleet-model"] == PIRATE
        stack.engines[first].mood = Mood.ANSWER
        await stack.served_by(ACME, "pirate")


async def test_when_all_lack_the_version_the_engine_answers_503(stack: Stack) -> None:
    for engine in stack.engines:
        engine.mood = Mood.LACK_VERSION
    reply = await stack.post(ACME, CHAT)
    assert reply.status == 503
    assert "x-lorafleet-retry" not in reply.headers


async def test_a_stream_that_fails_before_its_first_byte_is_retried(stack: Stack) -> None:
    first, second = await order(stack)
    stack.engines[first].mood = Mood.RESET
    headers = {"authorization": f"Bearer {ACME}"}
    async with stack.client.post(
        f"{stack.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers
    ) as response:
        assert response.status == 200
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")
    assert [len(stack.engines[each].arrivals) for each in (first, second)] == [1, 1]


async def test_a_stream_cut_after_its_first_byte_is_seen_as_cut_and_not_sent_twice(stack: Stack) -> None:
    for engine in stack.engines:
        engine.mood = Mood.CUT
    headers = {"authorization": f"Bearer {ACME}"}
    async with stack.client.post(
        f"{stack.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers
    ) as response:
        assert b"one" in await response.content.readuntil(b"\n\n")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
    assert sum(len(engine.arrivals) for engine in stack.engines) == 1


async def test_residency_decides_before_load(stack: Stack) -> None:
    one, two = stack.engines
    one.show({PIRATE: Tier.HOST, BUTLER: Tier.GPU})
    two.show({PIRATE: Tier.GPU, BUTLER: Tier.GPU}, in_flight=50)
    await until(lambda: settles(stack, "pirate", "e1"))
    one.show({PIRATE: Tier.GPU, BUTLER: Tier.GPU})
    await until(lambda: settles(stack, "pirate", "e0"))
    two.show({PIRATE: Tier.GPU, BUTLER: Tier.GPU}, in_flight=0)


async def settles(stack: Stack, model: str, engine: str) -> bool:
    """Whether the next three answers all come from one engine."""
    return {await stack.served_by(ACME, model) for _ in range(3)} == {engine}


async def test_an_endpoint_that_is_not_ready_gets_nothing(stack: Stack) -> None:
    put_slice(stack, 0, ready=False)
    await until(lambda: settles(stack, "pirate", "e1"))
    put_slice(stack, 0)
    await until(lambda: answers_from(stack, "pirate", "e0"))


async def answers_from(stack: Stack, model: str, engine: str) -> bool:
    return await stack.served_by(ACME, model) == engine


async def test_a_draining_engine_gets_nothing(stack: Stack) -> None:
    stack.engines[0].show({PIRATE: Tier.GPU, BUTLER: Tier.GPU}, draining=True)
    await until(lambda: settles(stack, "pirate", "e1"))
    stack.engines[0].show({PIRATE: Tier.GPU, BUTLER: Tier.GPU}, draining=False)
    await until(lambda: answers_from(stack, "pirate", "e0"))


async def test_the_openai_client_lists_asks_and_streams(stack: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=ACME, max_retries=0) as client:
        models = [model async for model in client.models.list()]
        assert [model.id for model in models] == ["smollm2", "cold", "pirate"]
        assert [model.to_dict().get("parent") for model in models] == [None, "smollm2", "smollm2"]
        assert (await client.models.retrieve("pirate")).owned_by == "acme"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("butler")
        with pytest.raises(openai.NotFoundError, match="`team/butler:v1`"):
            await client.models.retrieve("team/butler:v1")
        messages: Any = [{"role": "user", "content": "hi"}]
        answer: Any = await client.chat.completions.create(model="smollm2", messages=messages)
        assert answer.choices[0].message.content.startswith("from e")
        stream: Any = await client.chat.completions.create(model="pirate", messages=messages, stream=True)
        assert [chunk.choices[0].delta.content async for chunk in stream] == ["one", "two"]
    versions = {each.headers["x-lorafleet-model"] for engine in stack.engines for each in engine.arrivals}
    assert versions == {"base", PIRATE}


async def test_a_stream_arrives_as_it_is_made(stack: Stack) -> None:
    for engine in stack.engines:
        engine.gate.clear()
    async with stack.client.post(
        f"{stack.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers={"authorization": f"Bearer {ACME}"}
    ) as response:
        async with asyncio.timeout(5):
            first = await response.content.readuntil(b"\n\n")
        assert b"one" in first  # while the engine holds the rest back
        for engine in stack.engines:
            engine.gate.set()
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")
