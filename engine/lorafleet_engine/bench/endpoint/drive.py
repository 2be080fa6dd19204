"""Sends the requests of a phase: open loop (each when it is due) or closed loop (so many at once). Used by protocol.py.

An open loop never waits for answers, and latency counts from when a request was due: an endpoint, or a client, that
falls behind shows in the figures (no coordinated omission). `sent` tells how far the client itself was behind.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from lorafleet_engine.bench.endpoint.asks import Ask
from lorafleet_engine.bench.endpoint.client import Client, Outcome


@dataclass(slots=True)
class Phase:
    """The outcomes of a phase, in order of arrival; those that were under way when it was interrupted are left out.
    `seconds` from its begin to its last answer."""

    name: str
    offered: int
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Hooks:
    """`start` tells where a request's adapter is when it is due, `done` is called after every answer."""

    start: Callable[[Ask], str]
    done: Callable[[Outcome], None]


async def open_loop(client: Client, asks: Sequence[Ask], phase: Phase, hooks: Hooks) -> None:
    """Send every request when it is due; returns after the last answer. What is complete stands in `phase`."""
    tasks: set[asyncio.Task[None]] = set()
    with _steady_clock(phase) as began:
        try:
            for ask in asks:
                delay = began + ask.at - time.perf_counter()
                if delay > 0:
                    await asyncio.sleep(delay)
                task = asyncio.create_task(_one(client, ask, began, (phase, hooks)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            if tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
    phase.outcomes.sort(key=lambda outcome: outcome.ask.number)


async def closed_loop(client: Client, asks: Sequence[Ask], streams: int, phase: Phase, hooks: Hooks) -> None:
    """Keep `streams` requests under way until all have been answered; each is due when its turn comes."""
    queue = iter(asks)
    with _steady_clock(phase) as began:

        async def work() -> None:
            for ask in queue:
                await _one(client, replace(ask, at=time.perf_counter() - began), began, (phase, hooks))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(streams, len(asks))):
                group.create_task(work())
    phase.outcomes.sort(key=lambda outcome: outcome.ask.number)


async def _one(client: Client, ask: Ask, began: float, into: tuple[Phase, Hooks]) -> None:
    phase, hooks = into
    outcome = Outcome(ask, sent=time.perf_counter() - began, start=hooks.start(ask))
    await client.answer(outcome, began, phase.name)
    phase.outcomes.append(outcome)
    hooks.done(outcome)


@contextmanager
def _steady_clock(phase: Phase) -> Iterator[float]:
    """The phase's zero; no collection of garbage until it is over, which would hold up every stream."""
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    phase.interrupted = True
    try:
        yield began
        phase.interrupted = False
    finally:
        phase.seconds = time.perf_counter() - began
        gc.enable()
