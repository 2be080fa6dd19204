"""Requests byte by byte, as no client library would send them; used by the attacks on the gateway."""

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.gateway.doubles.hostile_http import make_length

Place = tuple[str, int]
CHAT = "/v1/chat/completions"
PASSING = frozenset({"date", "x-request-id", "content-length", "x-envoy-upstream-service-time"})
"""Headers that differ between any two answers."""
PATIENCE = 30.0
REFUSED_EARLY = (BrokenPipeError, ConnectionResetError)
"""The answer may come, and the connection end, before all of a request was sent."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        """Its status, and the error's code where it is one in the API's shape."""
        return f"{self.status} {self.error.get('code', '')}".strip()

    @property
    def error(self) -> Mapping[str, object]:
        """The error in the API's shape; empty where there is none."""
        found = self.json.get("error")
        return found if isinstance(found, dict) else {}

    @property
    def json(self) -> Mapping[str, Any]:
        """The body; empty where it is no JSON object."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def told(self, name: str) -> tuple[object, ...]:
        """All that the answer tells, but for the `name` that was asked for."""
        headers = {key: value for key, value in self.headers.items() if key not in PASSING}
        return self.status, headers, self.body.replace(name.encode(), b"NAME")


def chat(model: str, content: str = "What is snow?") -> bytes:
    """The body of a request for one token."""
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": 1, "temperature": 0}).encode()


def make_request(line: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A request whose line is `METHOD PATH`."""
    lines = {"host": "gateway", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
    return f"{line} HTTP/1.1\r\n".encode() + head + make_length(body) + b"\r\n" + body


def bearer(key: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"authorization": f"Bearer {key}"}


def send(place: Place, request: bytes) -> Reply:
    """Send the bytes over a connection of their own and read the answer. Raises OSError or HTTPException."""
    with socket.create_connection(place, PATIENCE) as connection:
        with suppress(*REFUSED_EARLY):
            connection.sendall(request)
        return read_reply(connection)


def read_reply(connection: socket.socket) -> Reply:
    """The answer that a connection brings. Raises OSError or HTTPException."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, response.read())
