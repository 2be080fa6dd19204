import asyncio

from lorafleet_engine.server.changes import REMEMBERED_REMOVALS, ChangeLog


async def test_waiting_ends_with_the_next_change() -> None:
    changes = ChangeLog()
    waiting = asyncio.create_task(changes.wait_beyond(changes.seq, 10))
    await asyncio.sleep(0)
    assert not waiting.done()

    changes.bump()

    await asyncio.wait_for(waiting, 1)


async def test_waiting_ends_after_its_time() -> None:
    changes = ChangeLog()

    await changes.wait_beyond(changes.seq, 0.01)


async def test_old_news_need_no_waiting() -> None:
    changes = ChangeLog()
    changes.bump()

    await asyncio.wait_for(changes.wait_beyond(1, 100), 1)


def test_removals_since() -> None:
    changes = ChangeLog()
    changes.remove("a")
    seq = changes.seq
    changes.remove("b")

    assert (changes.removed_since(seq), changes.removed_since(1)) == (["b"], ["a", "b"])


def test_forgotten_removals_ask_for_everything() -> None:
    changes = ChangeLog()
    for number in range(REMEMBERED_REMOVALS + 5):
        changes.remove(str(number))

    assert changes.removed_since(1) is None
    assert changes.removed_since(changes.seq) == []
