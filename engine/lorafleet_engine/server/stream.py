"""Sends an answer: plain JSON or server-sent events, watching for the client to leave. Called by serving.py.

The response begins with the first token: until then the gateway may still retry elsewhere, so errors before it are
ordinary HTTP answers. A client that leaves cancels the answer at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
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
    async with aclosing(answer.pieces()) as pieces:
        first = await anext(pieces)
        await exchange.start(200, b"text/event-stream; charset=utf-8")
        try:
            async for event in _events(first, pieces, shape):
                await exchange.write(_frame(head.wrap(shape.chunk_kind, [event]) | usage), more=True)
        except OpenAIError as error:
            await exchange.write(_frame(error.body()), more=False)
            return
    if include_usage:
        await exchange.write(_frame(head.wrap(shape.chunk_kind, []) | {"usage": usage_of(answer)}), more=True)
    await exchange.write(DONE, more=False)


async def _events(first: Piece, rest: AsyncIterator[Piece], shape: AnswerShape) -> AsyncIterator[dict[str, Any]]:
    opened: set[int] = set()
    piece: Piece | None = first
    while piece is not None:
        if piece.index not in opened:
            opened.add(piece.index)
            opening = shape.opening(piece.index)
            if opening is not None:
                yield opening
        if piece.text or piece.logprobs or piece.finish_reason:
            yield shape.delta(piece)
        piece = await anext(rest, None)


def _frame(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
