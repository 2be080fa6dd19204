"""Sends one request and times its streamed answer. Used by drive.py; never raises for what an endpoint does."""

import asyncio
import json
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import aiohttp

from lorafleet_engine.bench.endpoint.asks import Ask

Api = Literal["completions", "chat"]
PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
DETAIL = 300
FIRST_TOKEN_ID = 100
"""Below are control tokens in most vocabularies."""
# fmt: off
WORDS = (
    "river", "stone", "window", "garden", "letter", "market", "winter", "signal", "copper", "engine", "harbor",
    "lantern", "meadow", "paper", "silver", "thunder", "valley", "wagon", "yellow", "orchard", "bridge", "candle",
    "desert", "forest", "island", "journey", "kitchen", "mirror", "needle", "ocean", "planet", "rocket",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go and what they look like. `vocabulary` (completions only) makes prompts of token ids;
    without it they are words, of which `words_per_token` go for a token. `timeout_s` bounds a whole answer."""

    url: str
    key: str
    api: Api
    ignore_eos: bool
    timeout_s: float
    seed: int
    vocabulary: int | None = None
    words_per_token: float = 1.0

    def headers(self, ask: Ask) -> dict[str, str]:
        """The headers of a request; the key is that of the model where that names one."""
        key = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return {"content-type": "application/json", **key, **ask.model.headers}

    def body(self, ask: Ask, phase: str) -> bytes:
        """The request; every one of every phase has a prompt of its own, which no prefix cache has seen."""
        body: dict[str, Any] = {
            "model": ask.model.id,
            "max_tokens": ask.answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        prompt = self._prompt(ask, phase)
        if self.api == "chat":
            return json.dumps(body | {"messages": [{"role": "user", "content": prompt}]}).encode()
        return json.dumps(body | {"prompt": prompt}).encode()

    def _prompt(self, ask: Ask, phase: str) -> str | list[int]:
        random = Random(f"prompt {self.seed} {phase} {ask.group} {ask.number}")
        if self.vocabulary is not None:
            return random.choices(range(FIRST_TOKEN_ID, self.vocabulary), k=ask.prompt_tokens)
        return " ".join(random.choices(WORDS, k=max(round(ask.prompt_tokens * self.words_per_token), 1)))


@dataclass(slots=True)
class Outcome:
    """What became of a request. Times are seconds after the phase began; `sent` is when the client came to it.

    `gaps` are the times between arrivals of text after the first; `error` is "" or its kind, `detail` its message.
    `start` is where the adapter was when the request was due.
    """

    ask: Ask
    sent: float
    start: str = ""
    first: float | None = None
    last: float | None = None
    ended: float = 0.0
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    events: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    error: str = ""
    detail: str = ""

    @property
    def ttft(self) -> float | None:
        """Seconds from when the request was due to its first text."""
        return None if self.first is None else self.first - self.ask.at

    @property
    def pace(self) -> float:
        """Mean seconds between its tokens; 0 for an answer of one."""
        if self.first is None or self.last is None or self.tokens < 2:
            return 0.0
        return (self.last - self.first) / (self.tokens - 1)


class StreamError(Exception):
    """The endpoint's stream ended in an error, or was none."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Client:
    """Sends requests over one session; `began` is the phase's zero on time.perf_counter's clock."""

    def __init__(self, session: aiohttp.ClientSession, target: Target) -> None:
        self._session = session
        self.target = target

    async def answer(self, outcome: Outcome, began: float, phase: str) -> None:
        """Ask as in this phase, and fill in the outcome."""
        try:
            async with asyncio.timeout(self.target.timeout_s):
                await self._ask(outcome, began, phase)
        except TimeoutError:
            outcome.error = "timeout"
            outcome.detail = f"no complete answer within {self.target.timeout_s:g} s"
        except StreamError as error:
            outcome.error, outcome.detail = error.kind, str(error)[:DETAIL]
        except aiohttp.ClientConnectorError as error:
            outcome.error, outcome.detail = "unreachable", str(error)[:DETAIL]
        except (aiohttp.ClientError, ConnectionError) as error:
            outcome.error, outcome.detail = "connection lost", f"{type(error).__name__}: {error}"[:DETAIL]
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            outcome.error, outcome.detail = "malformed event", f"{type(error).__name__}: {error}"[:DETAIL]
        outcome.ended = time.perf_counter() - began

    async def _ask(self, outcome: Outcome, began: float, phase: str) -> None:
        target, ask = self.target, outcome.ask
        url = target.url + PATHS[target.api]
        async with self._session.post(url, data=target.body(ask, phase), headers=target.headers(ask)) as response:
            if response.status != 200:
                raise StreamError(f"HTTP {response.status}", message_of(await response.read()))
            stream = _Stream(outcome)
            async for data in response.content.iter_any():
                stream.take(data, time.perf_counter() - began)
            stream.end()


class _Stream:
    """Reads server-sent events and notes when text came."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self._done = False

    def take(self, data: bytes, now: float) -> None:
        """Some bytes that came at once. Raises StreamError."""
        texts = 0
        for event in self._events(data):
            usage = event.get("usage")
            if usage:
                self._outcome.tokens = int(usage.get("completion_tokens") or 0)
                self._outcome.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            texts += _has_text(event)
        if not texts:
            return
        outcome = self._outcome
        if outcome.first is None or outcome.last is None:
            outcome.first = now
        else:
            outcome.gaps.append(now - outcome.last)
        outcome.last = now
        outcome.events += texts

    def end(self) -> None:
        """The stream has ended. Raises StreamError for one that was cut short or brought nothing."""
        if not self._done:
            raise StreamError("stream cut", "the stream ended without [DONE]")
        if self._outcome.first is None:
            raise StreamError("no text", "the answer was complete and held no text")
        if not self._outcome.tokens:
            self._outcome.tokens = self._outcome.events

    def _events(self, data: bytes) -> Iterator[dict[str, Any]]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self._done = True
                continue
            try:
                event = json.loads(payload)
            except ValueError as error:
                raise StreamError("malformed event", f"not JSON: {payload[:80]!r}") from error
            if not isinstance(event, dict):
                raise StreamError("malformed event", f"not an object: {payload[:80]!r}")
            if event.get("error"):
                raise StreamError("error in stream", message_of(payload))
            yield event


def message_of(body: bytes) -> str:
    """What an error body says: OpenAI's message, or the body's beginning."""
    try:
        found = json.loads(body)
        error = found.get("error", found)
        message = error.get("message") if isinstance(error, dict) else error
        return str(message or found.get("detail") or found)[:DETAIL]
    except (ValueError, AttributeError):
        return body[:DETAIL].decode(errors="replace")


def _has_text(event: dict[str, Any]) -> bool:
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"):
            return True
    return False
