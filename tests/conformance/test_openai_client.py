"""The official client against the serving port, with the headers that the gateway adds."""

import openai
import pytest

from lorafleet_contracts.admin import PortName
from tests.conformance.client import BASE, Client, LoadedAdapter


def connect(client: Client, version: str) -> openai.OpenAI:
    engine = client.engine
    return openai.OpenAI(
        base_url=f"{engine.serving}/v1",
        api_key=engine.tokens[PortName.SERVING],
        default_headers=engine.headers(PortName.SERVING, version),
        max_retries=0,
    )


def test_chat_plain_and_streamed(client: Client, adapters: list[LoadedAdapter]) -> None:
    with connect(client, adapters[0].key) as official:
        question = {"role": "user", "content": "hello"}
        plain = official.chat.completions.create(
            model="m",
            messages=[question],
            max_completion_tokens=9,
            temperature=0,  # type: ignore[list-item]
        )
        stream = official.chat.completions.create(
            model="m",
            messages=[question],  # type: ignore[list-item]
            max_completion_tokens=9,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)

    assert plain.system_fingerprint == adapters[0].digest
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage == plain.usage


def test_completions(client: Client) -> None:
    with connect(client, BASE) as official:
        answer = official.completions.create(model="m", prompt=["a", "b"], max_tokens=4, logprobs=1)

    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs is not None


def test_errors_are_the_client_s_own(client: Client) -> None:
    question = {"role": "user", "content": "hello"}
    with connect(client, BASE) as official, pytest.raises(openai.BadRequestError) as caught:
        official.chat.completions.create(model="m", messages=[question], response_format={"type": "json_object"})  # type: ignore[list-item]
    assert caught.value.param == "response_format"

    with connect(client, "x@y") as official, pytest.raises(openai.InternalServerError) as missing:
        official.chat.completions.create(model="m", messages=[question])  # type: ignore[list-item]
    assert missing.value.code == "version_missing"
