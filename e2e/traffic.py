"""Clients that ask one question after the other while something happens; used by the tests of drains and sizes."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import openai

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client

STYLES = ("pirate", "shout")
"""Adapters of the quickstart whose answers are told by their style."""
HEAVY_WORDS = 200
"""Of a question that an engine on a CPU computes for a second or so; its answer is no work beside that."""
Ask = Callable[[int], str]
"""Ask once, for the n-th time, and say what was wrong with the answer: "" where nothing was."""


@dataclass
class Seen:
    """What clients got. Nobody asks twice, so `wrong` has every request that failed."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)


@contextmanager
def repeating(asks: Sequence[Ask], pause: float = 0.0) -> Iterator[Seen]:
    """Each of `asks` again and again in a thread of its own while the block runs, `pause` seconds after each answer."""
    seen, stop, lock = Seen(), threading.Event(), threading.Lock()

    def repeat(ask: Ask) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                fault = ask(number)
            except openai.APIError as error:
                fault = f"{type(error).__name__}: {error}"
            with lock:
                if fault:
                    seen.wrong.append(fault)
                else:
                    seen.right += 1
            stop.wait(pause)

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
def asking(client: Client) -> Iterator[Seen]:
    """A client of each of STYLES that looks at every answer, while the block runs."""

    def ask(style: str, number: int) -> str:
        answer = client.ask(style, UNSEEN[number % len(UNSEEN)])
        return "" if style_of(answer) == style else f"{style} answered {answer!r}"

    with repeating([partial(ask, style) for style in STYLES]) as seen:
        yield seen


@contextmanager
def pressing(client: Client, model: str, clients: int, pause: float = 0.0) -> Iterator[Seen]:
    """So many clients with long questions, no two alike from the first word on, while the block runs."""

    def ask(who: int, number: int) -> str:
        client.ask(model, f"{who} {number}" + " snow" * HEAVY_WORDS, tokens=1)
        return ""

    with repeating([partial(ask, who) for who in range(clients)], pause) as seen:
        yield seen
