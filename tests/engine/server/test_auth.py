import os
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.tokens import TOKEN_USED_METRIC, token_mark
from lorafleet_engine.server.auth import TokenFile, TokenGate, TokenUses
from lorafleet_engine.server.problems import refuse_token


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def answer(request: Request) -> Response:
    return PlainTextResponse("in")


async def ask(path: Path, target: str, header: str | None) -> int:
    app = Starlette(routes=[Route("/closed", answer), Route("/open", answer)])
    gate = TokenGate(app, TokenFile(path), refuse_token, frozenset({"/open"}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://engine") as client:
        return (await client.get(target, headers={} if header is None else {"authorization": header})).status_code


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer current", 200),
        ("bearer previous", 200),
        ("Bearer ", 401),
        ("Bearer other", 401),
        ("Basic current", 401),
        ("current", 401),
        ("Bearer currentcurrent", 401),
        (None, 401),
    ],
)
async def test_only_the_tokens_of_the_file_open_the_gate(tmp_path: Path, header: str | None, status: int) -> None:
    path = tmp_path / "state"
    path.write_text("current\nprevious\n\n")

    assert await ask(path, "/closed", header) == status


async def test_open_paths_need_no_token(tmp_path: Path) -> None:
    assert await ask(tmp_path / "missing", "/open", None) == 200


@pytest.mark.parametrize("content", [None, "", "\n \n"])
async def test_without_tokens_nobody_gets_in(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "state"
    if content is not None:
        path.write_text(content)

    assert await ask(path, "/closed", "Bearer ") == 401
    assert await ask(path, "/closed", "Bearer x") == 401


def test_a_swapped_mount_is_read_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    (tmp_path / "data").symlink_to("one")
    clock = Clock()
    tokens = TokenFile(tmp_path / "data" / "token", clock)
    assert tokens.accepts("one")

    (tmp_path / "swap").symlink_to("two")
    os.replace(tmp_path / "swap", tmp_path / "data")
    clock.now += 2

    assert (tokens.accepts("one"), tokens.accepts("two")) == (False, True)


def test_every_accepted_token_shows_when_it_was_used_and_none_shows_itself(tmp_path: Path) -> None:
    clock = Clock()
    file = tmp_path / "admin"
    file.write_text("new-token\nold-token\n")
    tokens = TokenFile(file, clock)
    registry = CollectorRegistry()
    registry.register(TokenUses({PortName.ADMIN: tokens}))

    def used(token: str) -> float | None:
        return registry.get_sample_value(TOKEN_USED_METRIC, {"port": "admin", "token": token_mark(token)})

    assert (used("new-token"), used("old-token")) == (0.0, 0.0)
    assert tokens.accepts("old-token")
    before = used("old-token")
    assert before is not None
    assert before > 0.0
    assert used("new-token") == 0.0
    assert b"-token" not in generate_latest(registry)

    file.write_text("new-token\n")
    clock.now += 2
    assert (used("new-token"), used("old-token")) == (0.0, None)
