"""What no well-meaning client sends: broken HTTP, bodies that are no request, headers that only the gateway may set.

Used by test_hostile_requests.py before a double's engines and by e2e/attacks before a cluster's.
"""

LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"


def make_head(key: str) -> bytes:
    """The first headers of a request with this key, its line left out."""
    return f"host: x\r\nauthorization: Bearer {key}\r\n".encode()


def make_length(body: bytes) -> bytes:
    """The header that announces `body`."""
    return b"content-length: %d\r\n" % len(body)


def break_http(key: str, body: bytes) -> dict[str, tuple[bytes, int]]:
    """What it is -> a request's bytes and the status that refuses it. Without the fault `body` would be answered."""
    head, length = make_head(key), make_length(body)
    end = b"\r\n" + body
    return {
        "no HTTP": (b"nonsense\r\n\r\n", 400),
        "unknown version": (LINE.replace(b"1.1", b"9.9") + head + length + end, 426),
        "negative length": (LINE + head + b"content-length: -1\r\n\r\n", 400),
        "two lengths": (LINE + head + b"content-length: 5\r\ncontent-length: 6\r\n" + end, 400),
        "length and chunks": (LINE + head + length + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        "unknown transfer encoding": (LINE + head + b"transfer-encoding: gzip\r\n\r\n", 503),
        "broken chunk": (LINE + head + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        "control character in a header": (LINE + head + b"x-odd: a\0b\r\n" + length + end, 400),
        "no host": (LINE + b"authorization: Bearer x\r\n" + length + end, 400),
        "long header": (LINE + head + b"x-long: " + b"a" * 70_000 + b"\r\n" + length + end, 431),
        "many headers": (LINE + head + b"".join(b"x-%d: 1\r\n" % n for n in range(150)) + length + end, 431),
        "upgrade": (
            b"GET /v1/models HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n" + head + b"\r\n",
            403,
        ),
    }


BROKEN_JSON = {
    "nested": b"[" * 100_000,
    "nested deeply": b'{"model": "pirate", "a": ' + b"[" * 100_000,
    "half a surrogate": b'{"model": "\\ud800"}',
    "NaN": b'{"model": "pirate", "temperature": NaN}',
    "UTF-16": '{"model": "pirate"}'.encode("utf-16"),
    "gzip": b"\x1f\x8b\x08\x00",
    "no UTF-8": b"\xff\xfe\xfd",
    "form": b"model=pirate",
    "list": b'{"model": ["pirate"]}',
    "empty": b'{"model": ""}',
    "null": b"null",
}
"""Bodies that are refused with 400, whoever sends them."""

SPOOFED: dict[str, dict[str, str]] = {
    "hop-by-hop": {"connection": "x-lorafleet-tenant, x-lorafleet-model"},
    "underscores": {"x_lorafleet_model": "base", "x_lorafleet_tenant": "globex/t"},
    "upper case": {"X-LORAFLEET-MODEL": "base", "x-lorafleet-": "x"},
    "forwarded": {
        "x-forwarded-for": "10.1.2.3",
        "x-forwarded-host": "admin",
        "x-forwarded-proto": "https",
        "forwarded": "for=1",
    },
    "request id": {"x-request-id": "of-another-request"},
    "host": {"host": "127.0.0.1:8002"},
    "override": {"x-http-method-override": "DELETE", "x-original-url": "/admin", "x-rewrite-url": "/admin"},
    "expect": {"te": "trailers", "expect": "100-continue"},
}
"""Headers that must not do what they say; the request is answered as if they were not there."""

INNER_URLS = (
    "/admin/v1/drain",
    "/v1/../admin/v1/drain",
    "/v1/%2e%2e/state",
    "/state",
    "/metrics",
    "//v1/models",
    "/readyz",
)
"""Of the engines and of the gateway itself: 404 for a client."""
