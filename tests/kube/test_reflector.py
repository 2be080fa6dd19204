"""The reflector against a scripted API server over loopback HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from lorafleet_kube.access import Access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_kube.errors import ApiError, UnreachableError
from lorafleet_kube.reflector import Change, Collection, Reflector

Event = dict[str, Any]


def thing(name: str, version: int, value: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version)}, "value": value}


def event(kind: str, name: str, version: int, value: str = "") -> Event:
    return {"type": kind, "object": thing(name, version, value)}


def bookmark(version: int, initial_end: bool = False) -> Event:
    annotations = {"k8s.io/initial-events-end": "true"} if initial_end else {}
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version), "annotations": annotations}}}


GONE_EVENT: Event = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}


@dataclass
class ScriptedServer:
    """Answers the n-th watch with the n-th script; the last one stays open."""

    scripts: list[list[Event]]
    queries: list[dict[str, str]] = field(default_factory=list)

    async def watch(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        response = web.StreamResponse()
        await response.prepare(request)
        for item in self.scripts[len(self.queries) - 1]:
            payload = orjson.dumps(item) + b"\n"
            await response.write(payload[:10])  # a line may come in pieces
            await response.write(payload[10:])
        if len(self.queries) == len(self.scripts):
            await asyncio.sleep(60)
        return response


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[KubeApi]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with connect(Access(Configuration(host=f"http://{host}:{port}"))) as api:
            yield api
    finally:
        await runner.cleanup()


@asynccontextmanager
async def reflecting(
    scripts: list[list[Event]],
) -> AsyncIterator[tuple[ScriptedServer, Reflector[str], list[Change[str]]]]:
    server = ScriptedServer(scripts)
    app = web.Application()
    app.router.add_get("/things", server.watch)
    changes: list[Change[str]] = []
    async with serving(app) as api:
        reflector: Reflector[str] = Reflector(api, Collection("/things", "a=b"), read_value, changes.append)
        task = asyncio.create_task(reflector.run())
        try:
            yield server, reflector, changes
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def read_value(found: dict[str, Any]) -> str:
    if found["value"] == "bad":
        raise ValueError("unreadable")
    return str(found["value"])


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_lists_then_follows_on_one_stream() -> None:
    script = [
        event("ADDED", "a", 3, "1"),
        bookmark(5, True),
        event("MODIFIED", "a", 6, "2"),
        event("ADDED", "b", 7, "x"),
    ]
    async with reflecting([script]) as (server, reflector, changes):
        await until(lambda: len(changes) == 3)
        assert reflector.synced.is_set()
        assert reflector.records == {("ns", "a"): "2", ("ns", "b"): "x"}
        assert changes[1] == Change(("ns", "a"), "1", "2")
        assert server.queries[0]["sendInitialEvents"] == "true"
        assert server.queries[0]["labelSelector"] == "a=b"
        assert "resourceVersion" not in server.queries[0]


async def test_an_unchanged_record_is_no_change() -> None:
    script = [event("ADDED", "a", 3, "1"), bookmark(5, True), event("MODIFIED", "a", 6, "1"), event("ADDED", "b", 7)]
    async with reflecting([script]) as (_, _, changes):
        await until(lambda: len(changes) == 2)
        assert [change.key[1] for change in changes] == ["a", "b"]


async def test_resumes_from_the_last_version_after_a_closed_stream() -> None:
    first = [event("ADDED", "a", 3, "1"), bookmark(5, True), event("MODIFIED", "a", 6, "2")]
    async with reflecting([first, [event("DELETED", "a", 8)]]) as (server, reflector, changes):
        await until(lambda: len(changes) == 3)
        assert reflector.records == {}
        assert changes[-1] == Change(("ns", "a"), "2", None)
        assert server.queries[1]["resourceVersion"] == "6"
        assert "sendInitialEvents" not in server.queries[1]


async def test_an_expired_version_lists_again_and_sweeps_what_vanished() -> None:
    first = [event("ADDED", "a", 3, "1"), event("ADDED", "b", 4, "1"), bookmark(5, True), GONE_EVENT]
    async with reflecting([first, [event("ADDED", "b", 4, "1"), bookmark(9, True)]]) as (_, reflector, changes):
        await until(lambda: len(changes) == 3)
        assert changes[-1] == Change(("ns", "a"), "1", None)
        assert reflector.records == {("ns", "b"): "1"}


async def test_a_list_that_ends_early_does_not_count() -> None:
    async with reflecting([[event("ADDED", "a", 3, "1")], [bookmark(9, True)]]) as (server, reflector, changes):
        await until(lambda: len(changes) == 2)
        assert "sendInitialEvents" in server.queries[1]
        assert reflector.records == {}


async def test_an_unreadable_object_is_left_out() -> None:
    async with reflecting([[event("ADDED", "a", 3, "bad"), event("ADDED", "b", 4, "1"), bookmark(5, True)]]) as (
        _,
        reflector,
        _,
    ):
        await until(reflector.synced.is_set)
        assert reflector.records == {("ns", "b"): "1"}


async def test_refusals_and_silence_are_told_apart() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"code": 403, "reason": "Forbidden", "message": "no"}, status=403)

    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    app = web.Application()
    app.router.add_get("/refused", refuse)
    app.router.add_get("/silent", silent)
    async with serving(app) as api:
        with pytest.raises(ApiError) as refused:
            await api.get("/refused")
        assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
        with pytest.raises(UnreachableError):
            await api.request("GET", "/silent", timeout_seconds=0.1)
        with pytest.raises(UnreachableError):
            async for _ in api.watch("/silent", {}, idle_seconds=0.1):
                pass


async def test_what_is_optional_counts_as_empty_while_it_is_forbidden() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"code": 403, "reason": "Forbidden", "message": "no"}, status=403)

    app = web.Application()
    app.router.add_get("/things", refuse)
    changes: list[Change[str]] = []
    async with serving(app) as api:
        optional = Reflector(
            api, Collection("/things"), lambda found: str(found["value"]), changes.append, optional=True
        )
        needed = Reflector(api, Collection("/things"), lambda found: str(found["value"]), changes.append)
        running = [asyncio.create_task(each.run()) for each in (optional, needed)]
        async with asyncio.timeout(5):
            await optional.synced.wait()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    assert (optional.records, changes) == ({}, [])
    assert not needed.synced.is_set()
