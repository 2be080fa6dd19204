"""The free list of the pool's equal pages, shared by KV blocks and adapters. Used by scheduler/ and residency.py."""

from collections.abc import Iterable
from enum import IntEnum

from lorafleet_engine.errors import DoesNotFitError


class Owner(IntEnum):
    """What a page is used for."""

    FREE = 0
    KV = 1
    ADAPTER = 2


class PagePool:
    """Hands out page numbers in [reserved, pages). Any free page serves any owner."""

    def __init__(self, pages: int, reserved: int) -> None:
        self.total = pages - reserved
        self._reserved = reserved
        self._free = list(range(pages - 1, reserved - 1, -1))
        self._owner = bytearray(pages)
        self._held = [0, 0, 0]

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def held(self, owner: Owner) -> int:
        """Pages that `owner` holds."""
        return self._held[owner]

    def take(self, count: int, owner: Owner) -> list[int]:
        """Return `count` pages. Raises DoesNotFitError, taking none, when fewer are free."""
        if count > len(self._free):
            raise DoesNotFitError("pages", count, len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._owner[page] = owner
        self._held[owner] += count
        return taken

    def give(self, pages: Iterable[int], owner: Owner) -> None:
        """Take pages back. Raises ValueError for a page that `owner` does not hold."""
        for page in pages:
            if page < self._reserved or self._owner[page] != owner:
                raise ValueError(f"page {page} is not held as {owner.name}")
            self._owner[page] = Owner.FREE
            self._held[owner] -= 1
            self._free.append(page)
