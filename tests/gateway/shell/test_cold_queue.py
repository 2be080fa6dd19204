"""The lines of requests that wait for cold adapters."""

import asyncio

import pytest

from lorafleet_gateway.core.rejections import Rejection
from lorafleet_gateway.shell.cold_queue import ColdLimits, ColdQueue

LIMITS = ColdLimits(seconds=5, per_adapter=2, requests=3, body_bytes=100)


def stand(queue: ColdQueue, version: str, size: int = 1, seconds: float = 5) -> asyncio.Task[None]:
    until = asyncio.get_running_loop().time() + seconds
    return asyncio.create_task(queue.wait(version, "name", size, until))


async def code(task: asyncio.Task[None]) -> str:
    with pytest.raises(Rejection) as rejected:
        await task
    assert rejected.value.status == 503
    assert rejected.value.retry_after
    return rejected.value.code


async def test_only_those_who_wait_for_what_arrived_are_woken() -> None:
    queue = ColdQueue(LIMITS)
    one, other = stand(queue, "a"), stand(queue, "b")
    await asyncio.sleep(0)
    queue.arrived({"a", "c"})
    await one
    assert not other.done()
    assert queue.waiting == 1
    queue.wake_all()
    await other
    assert queue.waiting == 0


@pytest.mark.parametrize(
    ("first", "refused"),
    [([("a", 1), ("a", 1)], ("a", 1)), ([("a", 1), ("b", 1), ("c", 1)], ("d", 1)), ([("a", 90)], ("b", 20))],
    ids=["one adapter's requests", "all requests", "all bytes"],
)
async def test_each_bound_refuses_at_once_and_lasts_no_longer_than_its_cause(
    first: list[tuple[str, int]], refused: tuple[str, int]
) -> None:
    queue = ColdQueue(LIMITS)
    waiting = [stand(queue, *each) for each in first]
    await asyncio.sleep(0)
    assert await code(stand(queue, *refused)) == "adapter_queue_full"
    assert queue.waiting == len(first)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    late = stand(queue, *refused)
    await asyncio.sleep(0)
    assert not late.done()
    queue.wake_all()
    await asyncio.gather(late, *waiting[1:])
    assert queue.waiting == 0


async def test_the_time_is_up_for_who_was_woken_for_nothing_too() -> None:
    queue = ColdQueue(LIMITS)
    first = stand(queue, "a")
    await asyncio.sleep(0)
    queue.arrived({"a"})
    again = stand(queue, "a", seconds=0.05)  # in a line of its own: news that were told before are none
    await first
    assert await code(again) == "adapter_not_ready"
    assert queue.waiting == 0
