"""What no well-meaning client sends: each is refused in the API's shape or made harmless; the next request works."""

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.doubles.stack import MAX_BODY, Stack, digest, make_key

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

ACME = make_key("acme", "t")
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(CHAT).encode()
LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"
KEY = f"host: x\r\nauthorization: Bearer {ACME}\r\n".encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
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


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/9.9\r\n" + KEY + LENGTH + b"\r\n" + BODY, 426),
        (LINE + KEY + b"content-length: -1\r\n\r\n", 400),
        (LINE + KEY + b"content-length: 5\r\ncontent-length: 6\r\n\r\n" + BODY, 400),
        (LINE + KEY + LENGTH + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (LINE + KEY + b"transfer-encoding: gzip\r\n\r\n", 501),
        (LINE + KEY + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (LINE + KEY + b"x-odd: a\0b\r\n" + LENGTH + b"\r\n" + BODY, 400),
        (LINE + b"authorization: Bearer x\r\n" + LENGTH + b"\r\n" + BODY, 400),
        (LINE + KEY + b"x-long: " + b"a" * 70_000 + b"\r\n" + LENGTH + b"\r\n" + BODY, 431),
        (LINE + KEY + b"".join(b"x-%d: 1\r\n" % n for n in range(150)) + LENGTH + b"\r\n" + BODY, 431),
        (b"GET /v1/models HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n" + KEY + b"\r\n", 403),
    ],
    ids=[
        "no HTTP",
        "unknown version",
        "negative length",
        "two lengths",
        "length and chunks",
        "unknown transfer encoding",
        "broken chunk",
        "control character in a header",
        "no host",
        "long header",
        "many headers",
        "upgrade",
    ],
)
async def test_broken_http_is_refused_in_the_apis_shape(stack: Stack, request_bytes: bytes, status: int) -> None:
    answered, headers, body = await send_raw(stack, request_bytes)
    assert answered == (503 if status == 501 else status)
    assert headers["content-type"] == "application/json"
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    assert not stack.engines[0].arrivals + stack.engines[1].arrivals
    assert (await stack.post(ACME, CHAT)).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"model": "pirate", "a": ' + b"[" * 100_000,
        b'{"model": "\\ud800"}',
        b'{"model": "pirate", "temperature": NaN}',
        json.dumps(CHAT).encode("utf-16"),
        b"\x1f\x8b\x08\x00",
        b"\xff\xfe\xfd",
        b"model=pirate",
        b'{"model": ["pirate"]}',
        b'{"model": ""}',
        b"null",
    ],
    ids=[
        "nested",
        "nested deeply",
        "half a surrogate",
        "NaN",
        "UTF-16",
        "gzip",
        "no UTF-8",
        "form",
        "list",
        "empty",
        "null",
    ],
)
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


@pytest.mark.parametrize(
    "spoofed",
    [
        {"connection": "x-lorafleet-tenant, x-lorafleet-model"},
        {"x_lorafleet_model": "base", "x_lorafleet_tenant": "globex/t"},
        {"X-LORAFLEET-MODEL": "base", "x-lorafleet-": "x"},
        {
            "x-forwarded-for": "10.1.2.3",
            "x-forwarded-host": "admin",
            "x-forwarded-proto": "https",
            "forwarded": "for=1",
        },
        {"x-request-id": "of-another-request"},
        {"host": "127.0.0.1:8002"},
        {"x-http-method-override": "DELETE", "x-original-url": "/admin", "x-rewrite-url": "/admin"},
        {"te": "trailers", "expect": "100-continue"},
    ],
    ids=["hop-by-hop", "underscores", "upper case", "forwarded", "request id", "host", "override", "expect"],
)
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


@pytest.mark.parametrize(
    "target",
    ["/admin/v1/drain", "/v1/../admin/v1/drain", "/v1/%2e%2e/state", "/state", "/metrics", "//v1/models", "/readyz"],
)
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
