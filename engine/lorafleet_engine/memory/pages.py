"""The pool's equal pages, shared by KV blocks and adapters. Used by scheduler/, prefix.py and residency.py.

Any page that nobody holds serves any owner. Several may hold the same page (a shared KV block). A page whose contents
are kept (prefix.py) is as free as any other once nobody holds it: such pages are taken last, the one longest unheld
first, and `on_loss` hears of it.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum

from lorafleet_engine.errors import DoesNotFitError


class Owner(IntEnum):
    """What a page is used for."""

    FREE = 0
    KV = 1
    ADAPTER = 2


class PagePool:
    """Hands out page numbers in [reserved, pages) and counts who holds them."""

    def __init__(self, pages: int, reserved: int) -> None:
        self.total = pages - reserved
        self.on_loss: Callable[[int], None] = _ignore
        self._reserved = reserved
        self._empty = list(range(pages - 1, reserved - 1, -1))
        self._owner = bytearray(pages)
        self._holders = [0] * pages
        self._held = [0, 0, 0]
        self._kept: set[int] = set()
        self._unheld: dict[int, None] = {}

    @property
    def free(self) -> int:
        """Pages that nobody holds, those with kept contents too."""
        return len(self._empty) + len(self._unheld)

    @property
    def kept_free(self) -> int:
        """Pages that nobody holds but whose contents are kept until somebody needs them."""
        return len(self._unheld)

    def held(self, owner: Owner) -> int:
        """Pages that `owner` holds."""
        return self._held[owner]

    def is_held(self, page: int) -> bool:
        """Whether anybody holds the page."""
        return self._holders[page] > 0

    def take(self, count: int, owner: Owner) -> list[int]:
        """Return `count` pages. Raises DoesNotFitError, taking none, when fewer are free."""
        if count > self.free:
            raise DoesNotFitError("pages", count, self.free)
        while count > len(self._empty):
            self._lose(next(iter(self._unheld)))
        taken = [self._empty.pop() for _ in range(count)]
        for page in taken:
            self._owner[page] = owner
            self._holders[page] = 1
        self._held[owner] += count
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """Hold pages with kept contents once more, for KV. Raises ValueError for a page that is not kept."""
        for page in pages:
            if page not in self._kept:
                raise ValueError(f"the contents of page {page} are not kept")
            if self._holders[page] == 0:
                del self._unheld[page]
                self._owner[page] = Owner.KV
                self._held[Owner.KV] += 1
            self._holders[page] += 1

    def give(self, pages: Iterable[int], owner: Owner) -> None:
        """Let go of pages once. Raises ValueError for a page that `owner` does not hold."""
        for page in pages:
            if page < self._reserved or self._owner[page] != owner:
                raise ValueError(f"page {page} is not held as {owner.name}")
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            self._owner[page] = Owner.FREE
            self._held[owner] -= 1
            if page in self._kept:
                self._unheld[page] = None
            else:
                self._empty.append(page)

    def keep(self, page: int) -> None:
        """Keep the contents of a page that is held as KV. Raises ValueError for another one."""
        if self._owner[page] != Owner.KV:
            raise ValueError(f"page {page} is not held as KV")
        self._kept.add(page)

    def unkeep(self, page: int) -> None:
        """The contents of the page are of no use any more."""
        self._kept.discard(page)
        if page in self._unheld:
            del self._unheld[page]
            self._empty.append(page)

    def _lose(self, page: int) -> None:
        self.unkeep(page)
        self.on_loss(page)


def _ignore(page: int) -> None:
    """Nobody keeps contents."""
