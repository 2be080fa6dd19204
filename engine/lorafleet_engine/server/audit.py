"""The audit log of the admin port: who asked for what, when, of which version, and what came of it. Built by ports.py.

It sees addresses, headers and statuses, and of bodies the `code` of a refusal alone: no secret can get into a line.
"""

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lorafleet_contracts.admin import DRAIN_PATH, INSPECT_PATH, VERSION_PATH
from lorafleet_contracts.names import HEADER_REQUEST_ID
from lorafleet_contracts.tokens import token_mark

log = logging.getLogger(__name__)

DENIED_SECONDS = 10.0
"""Requests without the port's token are told together this often: whoever sends them must not fill the disk."""
MOST_WAITING = 4096
LONGEST_WORD = 256
ACTIONS = {("POST", INSPECT_PATH): "inspect", ("PUT", VERSION_PATH): "load", ("DELETE", VERSION_PATH): "unload",
           ("POST", DRAIN_PATH): "drain"}  # fmt: skip
PATTERNS = [
    (method, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)), action)
    for (method, path), action in ACTIONS.items()
]
OUTCOMES = {200: "done", 201: "done", 202: "accepted", 204: "done", 401: "denied"}


class AdminAudit:
    """ASGI middleware outside of the token gate. A call that is asked again until it is done has two lines."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._waiting: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._denied = 0
        self._denied_told = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and note what came of it."""
        status, body = 500, bytearray()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400:
                body.extend(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            if scope["type"] == "http":
                self._note(scope, status, bytes(body))

    def _note(self, scope: Scope, status: int, body: bytes) -> None:
        headers = Headers(scope=scope)
        action, subject = _read_path(scope["method"], scope["path"])
        request_id = headers.get(HEADER_REQUEST_ID, "")[:LONGEST_WORD]
        if self._is_told(status, (request_id, action, subject)):
            return
        fields: dict[str, object] = {
            "action": action,
            "object": subject,
            "outcome": OUTCOMES.get(status, "refused" if status < 500 else "failed"),
            "status": status,
            "request_id": request_id,
            "actor": headers.get("user-agent", "")[:LONGEST_WORD],
            "peer": (scope.get("client") or ("",))[0],
        }
        if status == 401:
            fields["denied"], self._denied = self._denied, 0
        else:
            fields["token"] = token_mark(headers.get("authorization", "").partition(" ")[2].strip())
        if status >= 400:
            fields["code"] = _read_code(body)
        log.info("%s %s: %s", action, subject, fields["outcome"], extra={"fields": fields})

    def _is_told(self, status: int, call: tuple[str, str, str]) -> bool:
        """Whether a line would say nothing new."""
        if status == 401:
            self._denied += 1
            if self._clock() < self._denied_told + DENIED_SECONDS:
                return True
            self._denied_told = self._clock()
            return False
        told = call in self._waiting
        if status == 202 and call[0]:
            self._waiting[call] = None
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popitem(last=False)
            return told
        self._waiting.pop(call, None)
        return False


def _read_path(method: str, path: str) -> tuple[str, str]:
    """What is asked, and of what; a call that the port does not have is `other` and its path."""
    for wanted, pattern, action in PATTERNS:
        if method == wanted and (found := pattern.fullmatch(path)):
            return action, "@".join(found.groups())[:LONGEST_WORD]
    return "other", f"{method} {path}"[:LONGEST_WORD]


def _read_code(body: bytes) -> str:
    """The code of a problem document."""
    try:
        return str(orjson.loads(body)["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
