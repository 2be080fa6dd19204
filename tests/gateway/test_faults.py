"""What the gateway does while one of its parts is away: real Envoy, real picker, doubles around them."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from lorafleet_contracts.admin import Tier
from lorafleet_gateway.shell.drain import drain
from lorafleet_kube.paths import ENDPOINT_SLICES
from tests.gateway.doubles.engine import Mood
from tests.gateway.doubles.kubernetes import ADAPTERS
from tests.gateway.doubles.stack import Stack, digest, make_key, put_adapter, run_stack, until

pytestmark = pytest.mark.envoy

ACME = make_key("acme", "t")
PIRATE = f"uid-pirate@{digest('a')}"
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "hi"}]}


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with run_stack(tmp_path) as running:
        yield running


async def test_a_stream_survives_the_picker_and_new_requests_get_503(stack: Stack) -> None:
    for engine in stack.engines:
        engine.gate.clear()
    async with stack.client.post(
        f"{stack.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers={"authorization": f"Bearer {ACME}"}
    ) as response:
        assert b"one" in await response.content.readuntil(b"\n\n")
        stack.stop("picker")
        refused = await stack.post(ACME, CHAT)
        assert (refused.status, refused.body["error"]["code"]) == (503, "gateway_unavailable")
        assert refused.headers["retry-after"] == "1"
        for engine in stack.engines:
            engine.gate.set()
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")
    stack.start_picker()
    await stack.ready()
    await until(lambda: serves(stack))  # Envoy connects again with its own next request


async def test_it_serves_on_while_the_api_server_is_away(stack: Stack) -> None:
    stack.kubernetes.go_away()
    await asyncio.sleep(0.5)
    assert (await stack.post(ACME, CHAT)).status == 200
    health = f"http://127.0.0.1:{stack.settings.health_port}"
    async with stack.client.get(f"{health}/readyz") as response:
        assert response.status == 200
    async with stack.client.get(f"{health}/metrics") as response:
        ages = [line for line in (await response.text()).splitlines() if line.startswith("lorafleet_gateway_table_age")]
        assert float(ages[0].split()[1]) >= 0.5
    stack.stop("picker")
    stack.start_picker()  # knows nothing now
    await until(lambda: refuses(stack, "gateway_starting"))
    async with stack.client.get(f"{health}/readyz") as response:
        assert response.status == 503


async def test_what_is_published_while_the_api_server_is_away_is_routed_when_it_is_back(stack: Stack) -> None:
    stack.kubernetes.go_away()
    put_adapter(stack, "acme", "pirate", digest("c"))
    for engine in stack.engines:
        engine.show({PIRATE: Tier.GPU, f"uid-pirate@{digest('c')}": Tier.GPU})
    assert (await stack.post(ACME, CHAT)).status == 200  # with the version that it knows
    arrived = [each.headers["x-lorafleet-model"] for engine in stack.engines for each in engine.arrivals]
    assert arrived == [PIRATE]
    stack.kubernetes.come_back()
    await until(lambda: serves_version(stack, f"uid-pirate@{digest('c')}"))


async def serves_version(stack: Stack, version: str) -> bool:
    for engine in stack.engines:
        engine.arrivals.clear()
    assert (await stack.post(ACME, CHAT)).status == 200
    return [each.headers["x-lorafleet-model"] for engine in stack.engines for each in engine.arrivals] == [version]


async def refuses(stack: Stack, code: str) -> bool:
    return await stack.served_by(ACME, "pirate") == code


async def test_a_new_version_moves_and_a_deleted_adapter_is_404(stack: Stack) -> None:
    put_adapter(stack, "acme", "pirate", digest("c"))
    await until(lambda: refuses(stack, "adapter_not_ready"))  # no engine has it: never the old one by accident
    for engine in stack.engines:
        engine.arrivals.clear()
        engine.show({f"uid-pirate@{digest('c')}": Tier.GPU})
    await until(lambda: serves(stack))
    arrived = {each.headers["x-lorafleet-model"] for engine in stack.engines for each in engine.arrivals}
    assert arrived == {f"uid-pirate@{digest('c')}"}
    stack.kubernetes.delete(ADAPTERS, "acme", "pirate")
    await until(lambda: refuses(stack, "model_not_found"), seconds=5)


async def serves(stack: Stack) -> bool:
    return (await stack.post(ACME, CHAT)).status == 200


async def test_endpoints_that_go_leave_their_running_streams_alone(stack: Stack) -> None:
    stack.engines[1].show({})
    await until(lambda: engine_serves(stack, "e0"))
    stack.engines[0].gate.clear()
    async with stack.client.post(
        f"{stack.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers={"authorization": f"Bearer {ACME}"}
    ) as response:
        assert b"one" in await response.content.readuntil(b"\n\n")
        stack.kubernetes.delete(ENDPOINT_SLICES, "serving", "slice-0")
        await until(lambda: refuses(stack, "adapter_not_ready"))
        stack.kubernetes.delete(ENDPOINT_SLICES, "serving", "slice-1")
        await until(lambda: refuses(stack, "model_not_ready"))
        await asyncio.sleep(0.3)
        stack.engines[0].gate.set()
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def engine_serves(stack: Stack, name: str) -> bool:
    return {await stack.served_by(ACME, "pirate") for _ in range(3)} == {name}


async def test_a_dead_engine_is_retried_elsewhere_and_then_left_out(stack: Stack) -> None:
    await until(lambda: serves(stack))
    await stack.engines[0].die()
    answers = [await stack.served_by(ACME, "pirate") for _ in range(6)]
    assert set(answers) == {"e1"}


async def test_requests_on_an_engine_that_dies_are_answered_by_another(stack: Stack) -> None:
    for engine in stack.engines:
        engine.mood = Mood.HOLD
        engine.gate.clear()
    asked = [asyncio.create_task(stack.served_by(ACME, "pirate")) for _ in range(12)]
    await until(lambda: arrived(stack, 12))
    assert all(engine.arrivals for engine in stack.engines)
    stack.engines[1].gate.set()
    await stack.engines[0].die()
    assert set(await asyncio.gather(*asked)) == {"e1"}


async def arrived(stack: Stack, count: int) -> bool:
    return sum(len(engine.arrivals) for engine in stack.engines) == count


async def test_a_picker_that_hangs_costs_no_stream_and_new_requests_seconds_only(stack: Stack) -> None:
    for engine in stack.engines:
        engine.gate.clear()
    async with stack.client.post(
        f"{stack.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers={"authorization": f"Bearer {ACME}"}
    ) as response:
        assert b"one" in await response.content.readuntil(b"\n\n")
        stack.processes["picker"].send_signal(signal.SIGSTOP)
        async with asyncio.timeout(6):
            refused = await stack.post(ACME, CHAT)
        assert (refused.status, refused.body["error"]["code"]) == (503, "gateway_unavailable")
        stack.processes["picker"].send_signal(signal.SIGCONT)
        for engine in stack.engines:
            engine.gate.set()
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")
    await until(lambda: serves(stack))


async def test_envoy_keeps_its_connection_to_an_idle_picker(stack: Stack) -> None:
    assert await serves(stack)
    before = await picker_connections(stack)
    await asyncio.sleep(15)  # as many of its pings as gRPC bears by default, and some more
    assert await serves(stack)
    assert await picker_connections(stack) == before


async def picker_connections(stack: Stack) -> int:
    name = "cluster.picker.upstream_cx_total"
    url = f"http://127.0.0.1:{stack.settings.envoy_admin_port}/stats"
    async with stack.client.get(url, params={"filter": f"^{name}$"}) as response:
        return int((await response.text()).rpartition(" ")[2])


async def test_draining_waits_for_the_running_stream(stack: Stack) -> None:
    for engine in stack.engines:
        engine.gate.clear()
    async with stack.client.post(
        f"{stack.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers={"authorization": f"Bearer {ACME}"}
    ) as response:
        assert b"one" in await response.content.readuntil(b"\n\n")
        draining = asyncio.create_task(drain(stack.settings.envoy_admin_port, 30, settle_seconds=0.2))
        await until(lambda: not_ready(stack))
        await asyncio.sleep(1)
        assert not draining.done()
        for engine in stack.engines:
            engine.gate.set()
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")
    async with asyncio.timeout(10):
        await draining


async def not_ready(stack: Stack) -> bool:
    async with stack.client.get(f"{stack.url}/ready") as response:
        return response.status == 503
