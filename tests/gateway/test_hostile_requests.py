"""What no well-meaning client sends: each is refused in the API's shape or made harmless; the next request works."""

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.doubles.hostile_http import (
    BROKEN_JSON,
    INNER_URLS,
    LINE,
    SPOOFED,
    break_http,
    make_head,
    make_length,
)
from tests.gateway.doubles.stack import MAX_BODY, Stack, digest, make_key

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

ACME = make_key("acme", "t")
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(CHAT).encode()
KEY = make_head(ACME)
LENGTH = make_length(BODY)
BROKEN_HTTP = break_http(ACME, BODY)
PIRATE = f"uid-pirate@{digest('a')}"


async def send_raw(stack: Stack, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes; the answer's status, headers and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.settings.listen_port)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            if head[0].split()[1] == "100":
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.partition(": ") for line in head[1:] if line)
            headers = {name.lower(): value for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body
    finally:
        writer.close()


@pytest.mark.parametrize(("request_bytes", "status"), BROKEN_HTTP.values(), ids=BROKEN_HTTP)
async def test_broken_http_is_refused_in_the_apis_shape(stack: Stack, request_bytes: bytes, status: int) -> None:
    answered, headers, body = await send_raw(stack, request_bytes)
    assert answered == status
    assert headers["content-type"] == "application/json"
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    assert not stack.engines[0].arrivals + stack.engines[1].arrivals
    assert (await stack.post(ACME, CHAT)).status == 200


@pytest.mark.parametrize("body", BROKEN_JSON.values(), ids=BROKEN_JSON)
async def test_broken_json_is_a_400_that_names_the_fault(stack: Stack, body: bytes) -> None:
    reply = await stack.post(ACME, body)
    assert reply.status == 400
    error = reply.body["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert "JSON" in error["message"] or "`model`" in error["message"]
    assert not stack.engines[0].arrivals + stack.engines[1].arrivals


async def test_a_body_without_an_end_is_413_and_no_more_of_it_is_read(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.settings.listen_port)
    writer.write(LINE + KEY + b"transfer-encoding: chunked\r\n\r\n")
    sent = 0
    answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    while not answer.done() and sent < 64 << 20:
        try:
            writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            await writer.drain()
        except ConnectionError:
            break
        sent += 65536
    writer.close()
    assert (await answer).startswith(b"HTTP/1.1 413 ")
    assert sent < 32 * MAX_BODY


@pytest.mark.parametrize("key", ["", make_key("acme", "t", 3)])
async def test_a_body_without_a_valid_key_is_refused_before_it_is_sent(stack: Stack, key: str) -> None:
    host = f"host: x\r\nauthorization: Bearer {key}\r\n".encode()
    status, _, body = await send_raw(stack, LINE + host + b"content-length: %d\r\n\r\n" % MAX_BODY)
    assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("spoofed", SPOOFED.values(), ids=SPOOFED)
async def test_no_header_of_a_client_passes_for_one_of_ours(stack: Stack, spoofed: dict[str, str]) -> None:
    lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in spoofed.items())
    head = KEY if "host" not in spoofed else KEY.replace(b"host: x\r\n", b"")
    status, _, _ = await send_raw(stack, LINE + head + lines + LENGTH + b"\r\n" + BODY)
    assert status == 200
    (arrival,) = stack.engines[0].arrivals + stack.engines[1].arrivals
    ours = {name: value for name, value in arrival.headers.items() if "lorafleet" in name}
    assert ours == {
        "x-lorafleet-model": PIRATE,
        "x-lorafleet-tenant": "acme/t",
        "x-lorafleet-gateway": "gateway-1",
    }
    assert arrival.headers["authorization"] != f"Bearer {ACME}"
    assert arrival.headers["x-request-id"] != "of-another-request"
    assert "10.1.2.3" not in arrival.headers["x-forwarded-for"]
    assert arrival.headers["x-forwarded-proto"] == "http"
    assert not arrival.headers.keys() & {"forwarded", "x-forwarded-host"}


@pytest.mark.parametrize("target", INNER_URLS)
async def test_only_the_apis_urls_pass(stack: Stack, target: str) -> None:
    status, _, body = await send_raw(stack, f"GET {target} HTTP/1.1\r\n".encode() + KEY + b"\r\n")
    assert (status, json.loads(body)["error"]["code"]) == (404, "unknown_url")
    assert not stack.engines[0].arrivals + stack.engines[1].arrivals


async def test_a_name_looks_the_same_to_both_who_read_it(stack: Stack) -> None:
    reply = await stack.post(ACME, b'{"model": "butler", "model": "pirate"}')
    assert reply.status == 200
    arrivals: list[Any] = stack.engines[0].arrivals + stack.engines[1].arrivals
    assert arrivals[0].headers["x-lorafleet-model"] == PIRATE
    assert (await stack.post(ACME, b'{"model": "pirate", "model": "butler"}')).status == 404
