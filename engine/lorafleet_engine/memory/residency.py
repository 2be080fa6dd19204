"""Which versions are on the device, with their pages, rows of rank and users. Used by loop.py; ints only.

Life of a version: (loading ->) resident -> (remove while loading or in use) draining -> gone; removed while unused it
is gone at once. Nobody can acquire what is loading or draining.
"""

from dataclasses import dataclass

from lorafleet_engine.errors import DoesNotFitError
from lorafleet_engine.memory.pages import Owner, PagePool


@dataclass(slots=True, eq=False)
class Resident:
    """One version. `rows` are its rows of rank in the row table (as many as its largest rank), `owner` its number in a
    step's masks; `bytes` are its own, `pages` hold them, or will while it is `loading`."""

    key: str
    rank: int
    bytes: int
    pages: tuple[int, ...]
    rows: tuple[int, ...]
    requests: int = 0
    served: int = 0
    draining: bool = False
    loading: bool = False

    @property
    def owner(self) -> int:
        """A number no other resident version has."""
        return self.rows[0]


class Residency:
    """Places versions within `budget_bytes` of true bytes, and leaves `kv_floor` pages of the pool to KV."""

    def __init__(self, pool: PagePool, budget_bytes: int, table_rows: int, kv_floor: int) -> None:
        self._pool = pool
        self._budget = budget_bytes
        self._page_cap = pool.total - kv_floor
        self._rows = list(range(table_rows - 1, 0, -1))
        self._versions: dict[str, Resident] = {}
        self.bytes = 0

    def __contains__(self, key: str) -> bool:
        return key in self._versions

    def versions(self) -> tuple[Resident, ...]:
        """All versions, draining ones too, oldest first."""
        return tuple(self._versions.values())

    def get(self, key: str) -> Resident | None:
        """The version, in whatever phase."""
        return self._versions.get(key)

    def check(self, size: int, pages: int, rank: int) -> None:
        """Raise DoesNotFitError if a version of `size` bytes could not be placed even with every KV page freed."""
        if self.bytes + size > self._budget:
            raise DoesNotFitError("adapter bytes", size, self._budget - self.bytes)
        page_room = self._page_cap - self._pool.held(Owner.ADAPTER)
        if pages > page_room:
            raise DoesNotFitError("adapter pages", pages, page_room)
        if rank > len(self._rows):
            raise DoesNotFitError("rows of rank", rank, len(self._rows))

    def place(self, key: str, size: int, pages: int, rank: int) -> Resident:
        """Take what the version needs. Raises DoesNotFitError (also when KV holds the pages), ValueError if known."""
        if key in self._versions or rank < 1:
            raise ValueError(f"{key} is resident already or has no rank")
        self.check(size, pages, rank)
        taken = self._pool.take(pages, Owner.ADAPTER)
        rows = tuple(self._rows.pop() for _ in range(rank))
        resident = Resident(key, rank, size, tuple(taken), rows)
        self._versions[key] = resident
        self.bytes += size
        return resident

    def acquire(self, key: str) -> Resident | None:
        """Count one more user of a version; None if it is not there, not yet, or on its way out."""
        resident = self._versions.get(key)
        if resident is None or resident.draining or resident.loading:
            return None
        resident.requests += 1
        return resident

    def release(self, resident: Resident) -> bool:
        """Count one user less; True if that ended a draining version, whose bytes are free now."""
        resident.requests -= 1
        resident.served += 1
        if resident.draining and resident.requests == 0:
            self._drop(resident)
            return True
        return False

    def remove(self, key: str) -> bool:
        """Let a version go: True if it is gone now, False while it drains. Raises KeyError for an unknown one."""
        resident = self._versions[key]
        resident.draining = True
        if resident.requests or resident.loading:
            return False
        self._drop(resident)
        return True

    def arrive(self, resident: Resident) -> bool:
        """End the loading of a version; True if it was removed meanwhile, so that its bytes are free now."""
        resident.loading = False
        if resident.draining:
            self._drop(resident)
        return resident.draining

    def discard(self, resident: Resident) -> None:
        """Free a loading version whose bytes did not come. Nobody writes to its pages any more."""
        self._drop(resident)

    def _drop(self, resident: Resident) -> None:
        del self._versions[resident.key]
        self._pool.give(resident.pages, Owner.ADAPTER)
        self._rows.extend(resident.rows)
        self.bytes -= resident.bytes
