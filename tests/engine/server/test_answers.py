"""The inbox of a request's news: what a client that leaves may not do to the others."""

import asyncio

from lorafleet_engine.server.answers import Inbox


async def test_news_for_a_reader_that_is_being_cancelled_is_dropped_quietly() -> None:
    """The client has left, its task has not ended yet, and the loop sends the next token: all others depend on it."""
    inbox = Inbox()
    reader = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    reader.cancel()
    inbox.put(0, 17)
    await asyncio.gather(reader, return_exceptions=True)
    assert reader.cancelled()


async def test_what_piles_up_is_taken_in_one_go_and_in_order() -> None:
    inbox = Inbox()
    for token in (1, 2):
        inbox.put(0, token)
    assert await inbox.take() == [(0, 1), (0, 2)]
    waiting = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    inbox.put(1, 3)
    assert await waiting == [(1, 3)]
