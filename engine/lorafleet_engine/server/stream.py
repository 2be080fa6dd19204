"""Sends an answer: plain JSON or server-sent events, watching for the client to leave. Called by serving.py.

The response begins with the first token: until then the gateway may still retry elsewhere, so errors before it are
ordinary HTTP answers. A client that leaves cancels the answer at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Receive, Send

from lorafleet_engine.server.answers import Answer
from lorafleet_engine.server.choices import Piece
from lorafleet_engine.server.openai_errors import OpenAIError
from lorafleet_engine.server.shapes import AnswerHead, AnswerShape, usage_of

DONE = b"data: [DONE]\n\n"
EMPTY = b'"choices":[]'


class ClientGoneError(Exception):
    """The client left before its answer was complete."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request's way back: `headers` go on every answer."""

    send: Send
    receive: Receive
    headers: tuple[tuple[bytes, bytes], ...]

    async def start(self, status: int, content_type: bytes) -> None:
        """Send status and headers."""
        headers = [(b"content-type", content_type), *self.headers]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body."""
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def unless_gone(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`; stop it and raise ClientGoneError when the client disconnects first."""
        working = asyncio.ensure_future(work())
        watching = asyncio.create_task(self._gone())
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientGoneError
            await working
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


async def send_plain(exchange: Exchange, head: AnswerHead, shape: AnswerShape, answer: Answer) -> None:
    """Collect the answer and send it as one JSON object. Raises OpenAIError before anything is sent."""
    parts: dict[int, list[Piece]] = {}
    async with aclosing(answer.pieces()) as pieces:
        async for piece in pieces:
            parts.setdefault(piece.index, []).append(piece)
    body = orjson.dumps(shape.whole(head, [parts[index] for index in sorted(parts)], answer))
    await exchange.start(200, b"application/json")
    await exchange.write(body, more=False)


async def send_events(
    exchange: Exchange, head: AnswerHead, shape: AnswerShape, answer: Answer, *, include_usage: bool
) -> None:
    """Send the answer piece by piece. Raises OpenAIError only before anything is sent."""
    usage: dict[str, Any] = {"usage": None} if include_usage else {}
    frames = _Frames(head.wrap(shape.chunk_kind, []) | usage, shape)
    started = False
    async with aclosing(answer.pieces()) as pieces:
        try:
            async for piece in pieces:
                if not started:
                    started = True
                    await exchange.start(200, b"text/event-stream; charset=utf-8")
                events = frames.of(piece)
                if events:
                    await exchange.write(events, more=True)
        except OpenAIError as error:
            if not started:
                raise
            await exchange.write(_frame(error.body()), more=False)
            return
    if include_usage:
        await exchange.write(_frame(head.wrap(shape.chunk_kind, []) | {"usage": usage_of(answer)}), more=True)
    await exchange.write(DONE, more=False)


class _Frames:
    """Writes pieces as events. All events of an answer are alike but for their choice, so the rest is written once."""

    def __init__(self, chunk: dict[str, Any], shape: AnswerShape) -> None:
        before, _, after = orjson.dumps(chunk).partition(EMPTY)
        self._before, self._after = b"data: " + before + EMPTY[:-1], b"]" + after + b"\n\n"
        self._shape = shape
        self._opened: set[int] = set()

    def of(self, piece: Piece) -> bytes:
        """The events of a piece: none for one that makes nothing certain, two for one that opens its choice."""
        events = b""
        if piece.index not in self._opened:
            self._opened.add(piece.index)
            opening = self._shape.opening(piece.index)
            if opening is not None:
                events = self._event(opening)
        if piece.text or piece.logprobs or piece.finish_reason:
            events += self._event(self._shape.delta(piece))
        return events

    def _event(self, choice: dict[str, Any]) -> bytes:
        return self._before + orjson.dumps(choice) + self._after


def _frame(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
