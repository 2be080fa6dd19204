"""Runs the choices of one request in the loop and yields their pieces as they come. Used by serving.py.

Leaving the iteration early, for whatever reason, cancels what still runs.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from lorafleet_engine.messages import Generate, Rejected, SamplingParams, Tokens
from lorafleet_engine.server.choices import Choice, Piece
from lorafleet_engine.server.engine import Engine
from lorafleet_engine.server.loop_client import News
from lorafleet_engine.server.metrics import Metrics, RequestWatch
from lorafleet_engine.server.openai_errors import OpenAIError, rejected, unavailable
from lorafleet_engine.server.tokenizer import BaseTokenizer


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """One choice to generate."""

    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """A whole request: `adapter` is a version key or None; `prompt_tokens` counts each prompt once."""

    adapter: str | None
    tenant: str
    choices: tuple[ChoicePlan, ...]
    stops: tuple[str, ...]
    prompt_tokens: int
    weight: int = 1


class Answer:
    """One running answer; `completion_tokens` is complete once the iteration has ended."""

    def __init__(self, engine: Engine, plan: AnswerPlan, tokenizer: BaseTokenizer, watch: RequestWatch) -> None:
        self._engine = engine
        self._watch = watch
        self._plan = plan
        self._choices = [
            Choice(index, tokenizer, plan.stops, choice.params.logprobs is not None)
            for index, choice in enumerate(plan.choices)
        ]
        self._cached: dict[tuple[int, ...], int] = {}

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompts, each counted once, that the engine found computed."""
        return sum(self._cached.values())

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts."""
        return self._plan.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return sum(choice.completion_tokens for choice in self._choices)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """All pieces of all choices. Raises OpenAIError when a choice is refused or fails."""
        inbox = Inbox()
        running: dict[int, str] = {}
        clock = _TokenClock(self._engine.metrics)
        try:
            for index, choice in enumerate(self._plan.choices):
                request = Generate(
                    "", self._plan.adapter, choice.prompt, choice.params, self._plan.tenant, self._plan.weight
                )
                running[index] = self._engine.loop.generate(request, partial(inbox.put, index))
            while running:
                for index, news in _merged(await inbox.take()):
                    if index not in running:
                        continue
                    piece = self._take(index, news)
                    clock.note(index, news)
                    self._watch.note_piece()
                    if piece.finish_reason is not None:
                        self._engine.loop.cancel(running.pop(index))
                    yield piece
        finally:
            for request_id in running.values():
                self._engine.loop.cancel(request_id)

    def _take(self, index: int, news: Tokens | Rejected | list[int]) -> Piece:
        if isinstance(news, list):
            return self._choices[index].more(news)
        if isinstance(news, Rejected):
            raise rejected(news)
        if news.finish_reason == "error":
            raise OpenAIError(500, f"the engine failed: {news.error}", code="engine_error")
        if news.finish_reason == "cancelled":
            raise unavailable("the request was cancelled by the engine", "cancelled")
        self._cached.setdefault(self._plan.choices[index].prompt, news.cached)
        return self._choices[index].push(news)


class Inbox:
    """The news of all choices, in order, for one reader. What piles up while it is busy, it takes in one go."""

    def __init__(self) -> None:
        self._news: list[tuple[int, News]] = []
        self._arrived = asyncio.Event()  # and no future of our own: a reader may be cancelled, but not gone yet

    def put(self, index: int, news: News) -> None:
        """Add news of a choice."""
        self._news.append((index, news))
        self._arrived.set()

    async def take(self) -> list[tuple[int, News]]:
        """All that is there; waits for the first."""
        await self._arrived.wait()
        self._arrived.clear()
        taken, self._news = self._news, []
        return taken


def _merged(news: list[tuple[int, News]]) -> Iterator[tuple[int, Tokens | Rejected | list[int]]]:
    """Plain tokens of a choice that came one after another become one item, so that a busy server writes less."""
    plain: dict[int, list[int]] = {}
    for index, each in news:
        if isinstance(each, int):
            plain.setdefault(index, []).append(each)
            continue
        if index in plain:
            yield index, plain.pop(index)
        yield index, each
    yield from plain.items()


class _TokenClock:
    """Measures the time to the first token and between the pieces of a choice."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._began = perf_counter()
        self._last: dict[int, float] = {}

    def note(self, index: int, news: Tokens | Rejected | list[int]) -> None:
        now = perf_counter()
        if index in self._last:
            self._metrics.observe_gap(now - self._last[index])
        else:
            self._metrics.observe_first(now - self._began, news.queue_s if isinstance(news, Tokens) else None)
        self._last[index] = now
