"""Limits through the real Envoy: refusals in OpenAI's form, places that come back, one limit for several instances."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import count

import aiohttp
import openai
import pytest
import pytest_asyncio

from lorafleet_contracts.admin import UsageState
from lorafleet_gateway.shell.limits.shared_store import PLACE_SECONDS
from lorafleet_kube.paths import NAMESPACES
from tests.gateway.doubles.engine import EngineDouble, Mood, run_engine
from tests.gateway.doubles.http2 import connect_http2
from tests.gateway.doubles.kubernetes import POOLS
from tests.gateway.doubles.stack import (
    STATE_TOKEN,
    Stack,
    fill,
    free_ports,
    make_key,
    put_tenant,
    run_gateway,
    until,
)
from tests.gateway.doubles.store import ValkeyServer, run_store, store_url

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
PATIENCE = 60.0
PATH = "/v1/chat/completions"
LIMITS = {
    "fast": {"requestsPerSecond": 1, "burst": 30},
    "hourly": {"tokensPerMinute": 60},
    "narrow": {"concurrentRequests": 2},
    "stingy": {"requestsPerSecond": 1},
    "greedy": {"requestsPerSecond": 1, "burst": 1_000},
    "steady": {"requestsPerSecond": 20, "burst": 20},
}
TENANCY = {"maxLimits": {"burst": 100}}
OPEN_REQUESTS = "lorafleet_gateway_limited_open_requests"
STORE_UP = 'lorafleet_gateway_limits_store_up{when_down="Open"}'


def fill_limited(stack: Stack) -> None:
    """Beside the usual objects a tenant of each limit, in a namespace of its own; all may call the base."""
    fill(stack)
    base = {"name": "capped", "source": {"uri": "http://assets/b"}}
    capped = {"baseModel": base, "allowedNamespaces": {"from": "All"}, "tenancy": TENANCY}
    stack.kubernetes.put(POOLS, {"metadata": {"namespace": "serving", "name": "capped"}, "spec": capped})
    for namespace, limits in LIMITS.items():
        stack.kubernetes.put(NAMESPACES, {"metadata": {"name": namespace}})
        pool = {"poolRef": {"name": "capped", "namespace": "serving"}} if namespace == "greedy" else {}
        put_tenant(stack, namespace, base=True, limits=limits, weight=3, **pool)


@dataclass
class Three:
    """Instances before one engine: `alone` counts in memory, the others in one store. `closed` refuses without it."""

    engine: EngineDouble
    server: ValkeyServer
    alone: Stack
    open: Stack
    closed: Stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Three]:
    folder, port = tmp_path_factory.mktemp("limits"), free_ports(1)[0]
    url = folder / "url"
    url.write_text(store_url(port) + "\n")
    store = {"LORAFLEET_LIMITS_STORE_FILE": str(url)}
    async with AsyncExitStack() as exits:
        engine = await exits.enter_async_context(run_engine("e0", STATE_TOKEN))
        server = exits.enter_context(run_store(folder / "store", port))
        stacks = [
            await exits.enter_async_context(run_gateway(folder / name, [engine], fill_limited, **settings))
            for name, settings in {
                "alone": {},
                "open": store,
                "closed": store | {"LORAFLEET_LIMITS_WHEN_DOWN": "Closed", "LORAFLEET_GATEWAY_NAME": "gateway-2"},
            }.items()
        ]
        for stack in stacks:
            await until(lambda stack=stack: stack.knows(1), PATIENCE)  # type: ignore[misc]
        yield Three(engine, server, *stacks)


@pytest_asyncio.fixture(loop_scope="module")
async def three(running: Three) -> AsyncIterator[Three]:
    yield running
    running.engine.mood = Mood.ANSWER
    running.engine.gate.set()


async def ask(stack: Stack, namespace: str) -> tuple[int, str]:
    """Status of one request, and what an error says there was too much of."""
    reply = await stack.post(make_key(namespace, "t"), CHAT)
    return reply.status, "" if reply.status == 200 else reply.body["error"].get("type", "")


async def admits(stack: Stack, namespace: str) -> bool:
    """Whether a request gets through."""
    return (await ask(stack, namespace))[0] == 200


async def counts(stack: Stack, value: int, name: str = OPEN_REQUESTS) -> bool:
    """Whether a metric has this value."""
    return await stack.metric(name) == value


async def test_a_refusal_is_what_clients_of_openai_expect(three: Three) -> None:
    stack = three.open
    replies = await asyncio.gather(*(stack.post(make_key("stingy", "t"), CHAT) for _ in range(30)))
    refused = next(each for each in replies if each.status != 200)
    assert (refused.status, int(refused.headers["retry-after"])) == (429, 1)
    assert refused.body["error"] == {
        "message": "Rate limit reached: tenant stingy/t may have 1 requests per second. Try again in 1 s.",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    throttled = 'lorafleet_gateway_throttled_total{limit="requests",tenant="stingy/t"}'
    assert await stack.metric(throttled) == sum(each.status == 429 for each in replies)
    client = openai.AsyncOpenAI(base_url=stack.url + "/v1", api_key=make_key("stingy", "t"), max_retries=0)
    with pytest.raises(openai.RateLimitError):
        await asyncio.gather(*(client.chat.completions.create(**CHAT) for _ in range(30)))  # type: ignore[call-overload]
    await client.close()


async def test_a_tenant_that_asks_for_more_than_its_pool_allows_is_refused(three: Three) -> None:
    for reply in (
        await three.alone.post(make_key("greedy", "t"), CHAT),
        await three.alone.get(make_key("greedy", "t"), "/v1/models"),
    ):
        assert (reply.status, reply.body["error"]["code"]) == (403, "tenant_not_accepted")
        assert "limits.burst of namespace greedy would be 1000 in sum" in reply.body["error"]["message"]


async def test_places_come_back_with_the_answer_and_when_a_client_leaves(three: Three) -> None:
    stack, engine = three.alone, three.engine
    engine.mood = Mood.HOLD
    engine.gate.clear()
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {make_key('narrow', 't')}"}) as client:
        held = [asyncio.create_task(client.post(stack.url + PATH, json=CHAT)) for _ in range(2)]
        await until(lambda: counts(stack, 2), PATIENCE)
        assert await ask(stack, "narrow") == (429, "concurrency")
        held[0].cancel()
        with suppress(asyncio.CancelledError):
            await held[0]
        await until(lambda: counts(stack, 1), PATIENCE)
        async with connect_http2(stack.settings.listen_port) as other:
            stream = other.post(PATH, {"authorization": f"Bearer {make_key('narrow', 't')}"}, CHAT)
            await until(lambda: counts(stack, 2), PATIENCE)
            other.reset(stream)
            await until(lambda: counts(stack, 1), PATIENCE)
        engine.gate.set()
        assert (await held[1]).status == 200
    await until(lambda: counts(stack, 0), PATIENCE)
    assert await admits(stack, "narrow")
    assert engine.arrivals[-1].headers["x-lorafleet-weight"] == "3"


async def test_a_request_that_gets_no_engine_gives_its_place_back(three: Three) -> None:
    three.engine.mood = Mood.LACK_VERSION
    for _ in range(3):
        assert (await ask(three.alone, "narrow"))[0] == 503
        await until(lambda: counts(three.alone, 0), PATIENCE)


async def test_what_engines_count_is_charged(three: Three) -> None:
    stack, engine = three.alone, three.engine
    assert await admits(stack, "hourly")  # with an estimate that fills the budget, and comes back at the end
    await until(lambda: counts(stack, 0), PATIENCE)
    row = UsageState(tenant="hourly/t", adapter="base", gateway="gateway-1")
    engine.show({}, usage=[row])
    used = row.model_copy(update={"requests": 1, "prompt_tokens": 9_000, "completion_tokens": 91_000})
    engine.show({}, usage=[used])

    async def refused_for_long() -> bool:
        reply = await stack.post(make_key("hourly", "t"), CHAT)
        return reply.status == 429 and int(reply.headers["retry-after"]) > 90_000

    await until(refused_for_long, PATIENCE)
    assert await admits(stack, "acme")


async def test_instances_with_one_store_share_one_limit(three: Three) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    stacks = [three.open, three.closed] * 40
    answers = Counter(await asyncio.gather(*(ask(stack, "fast") for stack in stacks)))
    assert 30 <= answers[200, ""] <= 30 + loop.time() - started + 1
    three.engine.mood = Mood.HOLD
    three.engine.gate.clear()
    held = [asyncio.create_task(ask(stack, "narrow")) for stack in (three.open, three.closed)]
    for stack in (three.open, three.closed):
        await until(lambda stack=stack: counts(stack, 1), PATIENCE)  # type: ignore[misc]
    assert await ask(three.open, "narrow") == await ask(three.closed, "narrow") == (429, "concurrency")
    three.engine.gate.set()
    assert await asyncio.gather(*held) == [(200, "")] * 2
    await until(lambda: admits(three.closed, "narrow"), PATIENCE)


async def test_without_the_store_the_installations_choice_applies_and_shows(three: Three) -> None:
    three.server.stop()
    assert await admits(three.open, "narrow")
    assert await counts(three.open, 0, STORE_UP)
    answers = await asyncio.gather(*(ask(three.open, "stingy") for _ in range(30)))
    assert (429, "requests") in answers  # each instance still counts for itself
    reply = await three.closed.post(make_key("narrow", "t"), CHAT)
    assert (reply.status, reply.body["error"]["code"]) == (503, "limits_unavailable")
    assert await admits(three.closed, "acme")  # has no limits
    three.server.start(timeout=30)
    await until(lambda: counts(three.open, 1, STORE_UP), PATIENCE)
    await until(lambda: admits(three.closed, "narrow"), PATIENCE)


async def admitted_per_second(stacks: list[Stack], seconds: float) -> float:
    """What these instances let in of one tenant that offers three times its 20 a second, less its burst."""
    loop, admitted, asking = asyncio.get_running_loop(), 0, set[asyncio.Task[bool]]()
    started = loop.time()
    for number in count():
        now = loop.time()
        if now - started >= seconds:
            break
        asking.add(asyncio.create_task(admits(stacks[number % len(stacks)], "steady")))
        await asyncio.sleep(max(started + (number + 1) / 60 - now, 0))
        done = {each for each in asking if each.done()}
        admitted, asking = admitted + sum(each.result() for each in done), asking - done
    admitted += sum(await asyncio.gather(*asking))
    return (admitted - 20) / (loop.time() - started)


@pytest.mark.long
async def test_a_limit_of_20_admits_20_a_second_in_one_instance_and_in_two(three: Three) -> None:
    for stacks in ([three.alone], [three.open, three.closed]):
        assert 19 <= await admitted_per_second(stacks, 60) <= 21


@pytest.mark.long
async def test_an_instance_that_dies_in_the_middle_of_streams_leaves_no_places_taken(three: Three) -> None:
    three.engine.gate.clear()
    key, dying = make_key("narrow", "t"), three.closed
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as client:
        streams = [await client.post(dying.url + PATH, json={**CHAT, "stream": True}) for _ in range(2)]
        assert await ask(three.open, "narrow") == (429, "concurrency")
        dying.stop_all()
        for stream in streams:
            with pytest.raises(aiohttp.ClientError):
                await stream.read()
    assert await ask(three.open, "narrow") == (429, "concurrency")  # nobody has said that they are over
    await until(lambda: admits(three.open, "narrow"), 2 * PLACE_SECONDS)
