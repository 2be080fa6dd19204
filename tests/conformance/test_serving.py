"""Answers of the serving port: what OpenAI's API promises, and that a stream is its plain answer in pieces."""

import os
from typing import Any

import pytest

from tests.conformance.client import BASE, Client, LoadedAdapter

WINDOW = int(os.environ.get("LORAFLEET_CONFORMANCE_WINDOW", "8192"))
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = [{"role": "user", "content": "What is a ship?"}]


def versions(adapters: list[LoadedAdapter]) -> list[str]:
    return [BASE, *(adapter.key for adapter in adapters)]


def test_greedy_answers_repeat(client: Client, adapters: list[LoadedAdapter]) -> None:
    for version in versions(adapters):
        first, second = client.complete(version), client.complete(version)

        assert first["choices"] == second["choices"]
        assert first["usage"]["completion_tokens"] <= 12


def test_every_adapter_changes_the_answer(client: Client, adapters: list[LoadedAdapter]) -> None:
    texts = [client.complete(version, max_tokens=24)["choices"][0]["text"] for version in versions(adapters)]

    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_chat_stream_is_the_plain_answer(client: Client, adapters: list[LoadedAdapter], temperature: float) -> None:
    body = {
        "model": "some/name",
        "messages": QUESTION,
        "max_tokens": 40,
        "temperature": temperature,
        "seed": 7,
        "logprobs": True,
        "top_logprobs": 3,
        "stream_options": {"include_usage": True},
    }
    for version in versions(adapters):
        plain = client.post(CHAT, version, body).json()
        with client.streaming(CHAT, version, body) as events:
            chunks = list(events)

        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        message = plain["choices"][0]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == message["message"]["content"]
        assert _logprobs(choices) == message["logprobs"]["content"]
        assert choices[0]["delta"]["role"] == "assistant"
        assert choices[-1]["finish_reason"] == message["finish_reason"]
        assert chunks[-1]["usage"] == plain["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        assert plain["model"] == chunks[0]["model"] == "some/name"


def _logprobs(choices: list[dict[str, Any]]) -> list[Any]:
    return [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]


def test_a_completion_stream_is_the_plain_answer(client: Client, adapters: list[LoadedAdapter]) -> None:
    body = {"model": "m", "prompt": "The sea", "max_tokens": 40, "temperature": 1, "seed": 3, "logprobs": 2}
    plain = client.post(COMPLETIONS, adapters[0].key, body).json()["choices"][0]
    with client.streaming(COMPLETIONS, adapters[0].key, body) as events:
        choices = [choice for chunk in events for choice in chunk["choices"]]

    assert "".join(choice["text"] for choice in choices) == plain["text"]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"][field]]
        assert joined == plain["logprobs"][field]


def test_the_fingerprint_is_the_adapter_s_digest(client: Client, adapters: list[LoadedAdapter]) -> None:
    assert client.chat(adapters[1].key)["system_fingerprint"] == adapters[1].digest


def test_a_seed_repeats_and_another_differs(client: Client) -> None:
    answers = [client.complete(BASE, temperature=1, seed=seed, max_tokens=32) for seed in (5, 5, 6)]
    texts = [answer["choices"][0]["text"] for answer in answers]

    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_several_choices(client: Client) -> None:
    answer = client.complete(BASE, ["one", "two"], n=2, temperature=1, seed=1, max_tokens=16)

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in answer["choices"]}) > 1
    assert answer["usage"]["completion_tokens"] <= 4 * 16


def test_choices_of_a_stream_come_interleaved_and_whole(client: Client) -> None:
    body = {"model": "m", "messages": QUESTION, "n": 3, "max_tokens": 10, "temperature": 1, "seed": 1}
    plain = client.post(CHAT, BASE, body).json()
    texts = dict.fromkeys(range(3), "")
    with client.streaming(CHAT, BASE, body) as events:
        for chunk in events:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")

    assert [texts[index] for index in range(3)] == [choice["message"]["content"] for choice in plain["choices"]]


def test_a_stop_string_cuts_the_answer(client: Client) -> None:
    whole = client.complete(BASE, max_tokens=40, ignore_eos=True)["choices"][0]["text"]
    stop = whole[10:13]
    cut = client.complete(BASE, max_tokens=40, ignore_eos=True, stop=[stop])

    assert cut["choices"][0]["text"] == whole[: whole.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] < 40


def test_max_tokens_above_the_room_is_cut(client: Client) -> None:
    ids = [5] * (WINDOW - 6)
    answer = client.complete(BASE, ids, max_tokens=1000, ignore_eos=True)

    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": "warm"}, "temperature"),
        ({"messages": [{"role": "user"}]}, None),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_cannot_be_done_is_refused(client: Client, change: dict[str, Any], param: str | None) -> None:
    response = client.post(CHAT, BASE, {"model": "m", "messages": QUESTION} | change)

    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param


def test_unknown_fields_are_ignored(client: Client) -> None:
    assert client.chat(BASE, nobody_knows={"a": 1}, user="me")["choices"]


def test_a_prompt_beyond_the_window_is_refused(client: Client) -> None:
    response = client.post(COMPLETIONS, BASE, {"model": "m", "prompt": [5] * WINDOW})

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"messages": 5}', b"[" * 100_000])
def test_hostile_bodies_are_refused(client: Client, body: bytes) -> None:
    for path in (CHAT, COMPLETIONS):
        response = client.post(path, BASE, body)

        assert response.status_code == 400
        assert response.json()["error"]["message"]


def test_a_huge_body_is_refused(client: Client) -> None:
    response = client.post(CHAT, BASE, b'{"messages": "' + b"x" * (9 << 20) + b'"}')

    assert response.status_code == 413
    assert response.json()["error"]["message"]


def test_another_path_is_refused_in_shape(client: Client) -> None:
    response = client.post("/v1/images", BASE, {})

    assert response.status_code == 404
    assert response.json()["error"]["message"]


def test_a_request_must_name_its_version(client: Client) -> None:
    response = client.post(CHAT, None, {"model": "m", "messages": QUESTION})

    assert response.status_code == 400
    assert "x-lorafleet-model" in response.json()["error"]["message"]


@pytest.mark.parametrize("version", ["nobody@sha256:" + "0" * 64, "garbage", "uid-0", "@"])
def test_a_version_that_is_not_here_can_be_retried_elsewhere(client: Client, version: str) -> None:
    response = client.post(CHAT, version, {"model": "m", "messages": QUESTION})

    assert response.status_code == 503
    assert response.headers["x-lorafleet-retry"]
    assert "error" in response.json()


def test_the_request_id_is_echoed(client: Client) -> None:
    response = client.post(CHAT, BASE, {"messages": QUESTION, "max_tokens": 1}, **{"x-request-id": "abc-1"})

    assert response.headers["x-request-id"] == "abc-1"
    assert client.post(CHAT, "garbage", {}).headers["x-request-id"]
