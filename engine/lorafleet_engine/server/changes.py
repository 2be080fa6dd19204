"""Numbers every change of what the state port shows, so that a client can wait for news."""

import asyncio
from collections import deque

REMEMBERED_REMOVALS = 1024


class ChangeLog:
    """A sequence that only grows. Versions stamp themselves with it; removals are remembered for a while."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._removed: deque[tuple[int, str]] = deque(maxlen=REMEMBERED_REMOVALS)
        self.seq = 1

    def bump(self) -> int:
        """Note a change and return its number."""
        self.seq += 1
        self._changed.set()
        self._changed = asyncio.Event()
        return self.seq

    def remove(self, key: str) -> None:
        """Note that a version is gone."""
        self._removed.append((self.bump(), key))

    def removed_since(self, seq: int) -> list[str] | None:
        """Keys removed after `seq`; None when that is longer ago than remembered."""
        if len(self._removed) == REMEMBERED_REMOVALS and self._removed[0][0] > seq + 1:
            return None
        return [key for number, key in self._removed if number > seq]

    async def wait_beyond(self, seq: int, seconds: float) -> None:
        """Return at a change after `seq`, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self.seq <= seq:
                    await self._changed.wait()
        except TimeoutError:
            return
