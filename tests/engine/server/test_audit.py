"""The audit lines of the admin port, as they are written."""

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lorafleet_contracts.admin import DRAIN_PATH, INSPECT_PATH, VERSION_PATH, ProblemCode
from lorafleet_contracts.tokens import token_mark
from lorafleet_engine.logs import JsonLines
from lorafleet_engine.server.audit import DENIED_SECONDS, AdminAudit
from lorafleet_engine.server.auth import TokenFile, TokenGate
from lorafleet_engine.server.problems import answer_problem, make_problem, refuse_token

DIGEST = "sha256:" + "a" * 64
TOKEN, PASSWORD = "admin-token", "hf_password"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Port:
    """An admin port that answers with these, one after the other."""

    def __init__(self, folder: Path, *answers: Response) -> None:
        (folder / "admin").write_text(TOKEN)
        self.clock = Clock()
        left = list(answers)

        async def answer(request: Request) -> Response:
            await request.body()
            return left.pop(0)

        methods = {INSPECT_PATH: "POST", VERSION_PATH: "PUT", DRAIN_PATH: "POST"}
        routes = [Route(path, answer, methods=[method, "DELETE"]) for path, method in methods.items()]
        gate = TokenGate(Starlette(routes=routes), TokenFile(folder / "admin"), refuse_token, frozenset())
        self._transport = httpx.ASGITransport(AdminAudit(gate, self.clock), client=("10.1.2.3", 5))

    async def send(self, method: str, path: str, token: str = TOKEN, **headers: str) -> int:
        """One request with a credential in its body."""
        sent = {
            "authorization": f"Bearer {token}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        async with httpx.AsyncClient(transport=self._transport, base_url="http://engine") as client:
            return (await client.request(method, path, headers=sent, json={"password": PASSWORD})).status_code


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines, without what all have; no secret may be in them."""
    texts = [JsonLines("api").format(each) for each in caplog.records if each.name.endswith(".audit")]
    assert all(secret not in text for text in texts for secret in (TOKEN, PASSWORD, "wrong-token"))
    common = ("time", "level", "process", "logger", "message")
    return [{name: value for name, value in json.loads(text).items() if name not in common} for text in texts]


async def test_a_call_that_is_asked_again_until_it_is_done_has_two_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    port = Port(tmp_path, *(Response(status_code=status) for status in (202, 202, 202, 201)))
    path = VERSION_PATH.format(uid="u1", digest=DIGEST)
    for _ in range(4):
        await port.send("PUT", path, x_request_id="r-1", user_agent="lorafleet-operator/o-1")

    common = {"action": "load", "object": f"u1@{DIGEST}", "token": token_mark(TOKEN)}
    common |= {"request_id": "r-1", "actor": "lorafleet-operator/o-1", "peer": "10.1.2.3"}
    assert lines(caplog) == [
        common | {"outcome": "accepted", "status": 202},
        common | {"outcome": "done", "status": 201},
    ]


@pytest.mark.parametrize(
    ("method", "path", "action", "subject"),
    [
        ("POST", INSPECT_PATH.format(uid="u1"), "inspect", "u1"),
        ("DELETE", VERSION_PATH.format(uid="u1", digest=DIGEST), "unload", f"u1@{DIGEST}"),
        ("POST", DRAIN_PATH, "drain", ""),
        ("PATCH", "/nowhere", "other", "PATCH /nowhere"),
    ],
)
async def test_every_call_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str, path: str, action: str, subject: str
) -> None:
    caplog.set_level(logging.INFO)
    await Port(tmp_path, Response(status_code=204)).send(method, path)
    (line,) = lines(caplog)
    assert (line["action"], line["object"]) == (action, subject)


async def test_a_refusal_has_its_code(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refusal = answer_problem(make_problem(ProblemCode.DOES_NOT_FIT, f"not with {PASSWORD}"))
    await Port(tmp_path, refusal).send("PUT", VERSION_PATH.format(uid="u1", digest=DIGEST))
    (line,) = lines(caplog)
    assert (line["outcome"], line["status"], line["code"]) == ("refused", 413, "does_not_fit")


async def test_requests_without_the_token_are_counted_and_told_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    port = Port(tmp_path)
    for _ in range(50):
        assert await port.send("POST", DRAIN_PATH, token="wrong-token") == 401
    port.clock.now += DENIED_SECONDS
    await port.send("POST", DRAIN_PATH, token="wrong-token")

    first, second = lines(caplog)
    assert first["outcome"] == second["outcome"] == "denied"
    assert (first["denied"], second["denied"]) == (1, 50)
    assert "token" not in first
