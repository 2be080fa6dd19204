"""The state port: long-polling deltas, usage, metrics, open probes; and that each port wants its own token."""

import threading
import time

import httpx
import pytest

from lorafleet_contracts.admin import EngineState, PortName, StepsState
from lorafleet_contracts.capacity import ModelShape, kv_bytes_per_token, plan_memory, weight_bytes
from tests.conformance.client import BASE, Client, LoadedAdapter, until
from tests.support.engine_process import Engine


def test_the_whole_state(client: Client, adapters: list[LoadedAdapter]) -> None:
    state = EngineState.model_validate(client.state())

    assert state.full
    assert state.ready
    assert not state.draining
    assert state.memory is not None
    assert state.memory.adapters_used >= sum(adapter.bytes for adapter in adapters)
    assert state.memory.adapters >= state.memory.adapters_used
    shown = {version.key: version for version in state.versions}
    for adapter in adapters:
        version = shown[adapter.key]
        assert (version.tier, version.phase, version.bytes) == ("gpu", "resident", adapter.bytes)
        assert version.rank > 0


def test_the_shape_of_the_base_predicts_the_memory_that_is_reported(client: Client) -> None:
    state = EngineState.model_validate(client.state())
    assert state.base.shape is not None
    assert state.memory is not None
    shape = ModelShape(**state.base.shape.model_dump())
    size = next(size for size in (2, 4) if weight_bytes(shape, size) == state.memory.weights)
    per_token = kv_bytes_per_token(shape, size)
    predicted = plan_memory(state.memory.total, state.memory.weights, state.memory.activations, per_token)
    assert (predicted.adapters, predicted.kv_tokens) == (state.memory.adapters, state.memory.kv_tokens)


def test_steps_are_counted_with_what_they_cost(client: Client, adapters: list[LoadedAdapter]) -> None:
    def steps() -> StepsState:
        found = EngineState.model_validate(client.state()).steps
        assert found is not None
        return found

    before = steps()
    client.complete(adapters[0].key)
    after = until(steps, lambda now: now.rank_sum > before.rank_sum)  # the adapter's ranks
    assert after.decode_steps > before.decode_steps
    assert after.seconds > before.seconds


def test_nothing_new_waits_for_its_time(client: Client) -> None:
    state = settle(client)
    began = time.monotonic()
    again = client.state(since=state["seq"], boot=state["bootId"], timeout=0.5)

    assert time.monotonic() - began >= 0.4 or again["seq"] > state["seq"]
    assert not again["full"]


def test_a_change_answers_a_waiting_poll_with_the_difference(client: Client, sources: list[str]) -> None:
    client.bring("polled", sources[3])
    digest = client.inspect("polled", sources[3]).json()["digest"]
    state = settle(client)
    threading.Timer(0.3, lambda: client.delete("polled", digest)).start()
    removed: list[str] = []
    deadline = time.monotonic() + 10
    while not removed and time.monotonic() < deadline:
        state = client.state(since=state["seq"], boot=state["bootId"], timeout=5)
        assert not state["full"]
        removed += state["removed"]

    assert removed == [f"polled@{digest}"]


@pytest.mark.parametrize("query", [{"since": 5, "boot": "another"}, {"since": 10**12}, {}])
def test_a_stranger_gets_everything(client: Client, adapters: list[LoadedAdapter], query: dict[str, object]) -> None:
    state = client.state(**query)

    assert state["full"]
    assert len(state["versions"]) >= len(adapters)


def test_a_wrong_query_is_refused(client: Client) -> None:
    response = httpx.get(f"{client.engine.state}/state?since=x", headers=client.engine.headers(PortName.STATE))

    assert response.status_code == 400


def test_usage_is_counted_by_tenant_adapter_and_gateway(client: Client, adapters: list[LoadedAdapter]) -> None:
    def row() -> tuple[int, int, int]:
        for usage in client.state()["usage"]:
            if (usage["tenant"], usage["adapter"], usage["gateway"]) == ("team/acme", adapters[0].key, "gateway-0"):
                return usage["requests"], usage["promptTokens"], usage["completionTokens"]
        return 0, 0, 0

    before = row()
    usage = client.complete(adapters[0].key)["usage"]
    after = row()

    assert after[0] - before[0] == 1
    assert after[1] - before[1] == usage["prompt_tokens"]
    assert after[2] - before[2] == usage["completion_tokens"]
    assert client.state(usage="nobody")["usage"] == []
    told = client.state(usage="gateway-0")
    assert {each["gateway"] for each in told["usage"]} == {"gateway-0"}
    assert client.state(usage="gateway-0", since=told["seq"], boot=told["bootId"])["usage"] == []  # nothing new


def test_a_client_that_leaves_is_cancelled_within_a_second(client: Client) -> None:
    with client.streaming("/v1/completions", BASE, client.long_body()) as events:
        next(events)
        until(lambda: (client.state()["inFlight"], client.running()), lambda found: found == (1, 1), 5)
    until(lambda: (client.state()["inFlight"], client.running()), lambda found: found == (0, 0), 1.5)


def test_a_plain_request_whose_client_leaves_is_cancelled(client: Client) -> None:
    engine = client.engine
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{engine.serving}/v1/completions",
            json=client.long_body(),
            headers=engine.headers(PortName.SERVING, BASE),
            timeout=0.3,
        )
    until(lambda: (client.state()["inFlight"], client.running()), lambda found: found == (0, 0), 1.5)


def test_metrics(client: Client, adapters: list[LoadedAdapter]) -> None:
    client.complete(adapters[0].key)
    text = httpx.get(f"{client.engine.state}/metrics", headers=client.engine.headers(PortName.STATE)).text

    line = f'lorafleet_adapter_requests_total{{adapter="team/{adapters[0].uid}",code="200",tenant="team/acme"}}'
    assert line in text
    who = f'adapter="team/{adapters[0].uid}",tenant="team/acme"'
    assert f'\nlorafleet_adapter_lookups_total{{{who},tier="gpu"}}' in text
    for name in ("lorafleet_adapter_ttft_seconds", "lorafleet_adapter_request_seconds"):
        assert f"\n{name}_count{{{who}}}" in text
    for name in ("lorafleet_ttft_seconds_count", "lorafleet_itl_seconds_count", "lorafleet_packing_waste_bytes"):
        assert f"\n{name} " in text
    for tier in ("gpu", "host", "disk"):
        assert f'\nlorafleet_resident_bytes{{tier="{tier}"}} ' in text
    assert "vllm:lora_requests_info" in text


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_are_open_and_empty(engine: Engine, path: str) -> None:
    response = httpx.get(f"{engine.state}{path}")

    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("token", [None, "", "wrong", *PortName])
@pytest.mark.parametrize("port", list(PortName))
def test_each_port_wants_its_own_token(engine: Engine, port: PortName, token: str | None) -> None:
    url = {
        PortName.SERVING: f"{engine.serving}/v1/chat/completions",
        PortName.STATE: f"{engine.state}/state",
        PortName.ADMIN: f"{engine.admin}/admin/v1/none",
    }[port]
    given = engine.tokens[token] if isinstance(token, PortName) else token
    headers = {} if given is None else {"authorization": f"Bearer {given}".strip()}

    assert (httpx.get(url, headers=headers).status_code == 401) == (token != port)


def settle(client: Client) -> dict[str, object]:
    """A state that does not change by itself any more."""
    state = client.state()
    for _ in range(50):
        again = client.state(since=state["seq"], boot=state["bootId"], timeout=0.7)
        if again["seq"] == state["seq"]:
            break
        state = again
    return state
