"""Clients that ask one question after the other while something happens; used by the e2e tests."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import httpx
import openai

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client

STYLES: Mapping[str, str] = {"pirate": "pirate", "shout": "shout"}
"""Adapters of the quickstart whose answers are told by their style."""
HEAVY_WORDS = 200
"""Of a question that an engine on a CPU computes for a second or so; its answer is no work beside that."""
Ask = Callable[[int], str]
"""Ask once, for the n-th time, and say what was wrong with the answer: "" where nothing was."""


@dataclass
class Seen:
    """What clients got. Nobody asks twice, so `wrong` has every request that failed; the slowest took `longest` s.

    Each client waits `pause` seconds after an answer; the test may change that, and `longest`, as it goes on.
    """

    pause: float = 0.0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0


@contextmanager
def repeating(asks: Sequence[Ask], pause: float = 0.0) -> Iterator[Seen]:
    """Each of `asks` again and again in a thread of its own while the block runs, `pause` seconds after each answer."""
    seen, stop, lock = Seen(pause), threading.Event(), threading.Lock()

    def repeat(ask: Ask) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            begun = time.monotonic()
            try:
                fault = ask(number)
            except (openai.APIError, httpx.HTTPError) as error:
                fault = f"{type(error).__name__}: {error}"
            with lock:
                seen.longest = max(seen.longest, time.monotonic() - begun)
                if fault:
                    seen.wrong.append(fault)
                else:
                    seen.right += 1
            stop.wait(seen.pause)

    threads = [threading.Thread(target=repeat, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def asking(client: Client, styles: Mapping[str, str] = STYLES) -> Iterator[Seen]:
    """A client of each model that looks at every answer, while the block runs. `styles` are those of the models."""

    def ask(model: str, number: int) -> str:
        answer = client.ask(model, UNSEEN[number % len(UNSEEN)])
        return "" if style_of(answer) == styles[model] else f"{model} answered {answer!r}"

    with repeating([partial(ask, model) for model in styles]) as seen:
        yield seen


@contextmanager
def tapping(client: Client, *models: str, pause: float = 0.0) -> Iterator[Seen]:
    """A client of each model that wants two tokens and looks at nothing, while the block runs."""

    def ask(model: str, number: int) -> str:
        client.ask(model, UNSEEN[number % len(UNSEEN)], tokens=2)
        return ""

    with repeating([partial(ask, model) for model in models], pause) as seen:
        yield seen


@contextmanager
def pressing(client: Client, model: str, clients: int, pause: float = 0.0) -> Iterator[Seen]:
    """So many clients with long questions, no two alike from the first word on, while the block runs."""

    def ask(who: int, number: int) -> str:
        client.ask(model, f"{who} {number}" + " snow" * HEAVY_WORDS, tokens=1)
        return ""

    with repeating([partial(ask, who) for who in range(clients)], pause) as seen:
        yield seen
