"""What a store of limits does, and the one that a single gateway instance has in its memory. Used by limiter.py."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from lorafleet_gateway.core.limits import Ask, Ledger, Limits, Refused, admit, charge
from lorafleet_gateway.core.records import ObjectKey


class Store(Protocol):
    """Where tenants' budgets and open requests are counted."""

    async def admit(self, tenant: ObjectKey, limits: Limits, ask: Ask) -> Refused | None:
        """Let a request in, or say which limit it is over."""

    async def charge(self, tenant: ObjectKey, limits: Limits, tokens: int) -> None:
        """Take tokens that an engine has counted."""

    async def end(self, tenant: ObjectKey, limits: Limits, ask: Ask) -> None:
        """A request that was let in has ended: its place is free, and what was only an estimate comes back."""

    async def renew(self, held: Mapping[ObjectKey, Iterable[str]]) -> None:
        """These requests are still open."""


class MemoryStore:
    """Counts in this process: right for one instance, and gone with it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ledgers: dict[ObjectKey, Ledger] = {}

    async def admit(self, tenant: ObjectKey, limits: Limits, ask: Ask) -> Refused | None:
        """See Store."""
        return admit(self._ledger(tenant), limits, ask, self._clock())

    async def charge(self, tenant: ObjectKey, limits: Limits, tokens: int) -> None:
        """See Store."""
        charge(self._ledger(tenant), limits, tokens, self._clock())

    async def end(self, tenant: ObjectKey, limits: Limits, ask: Ask) -> None:
        """See Store."""
        ledger = self._ledger(tenant)
        ledger.open.discard(ask.id)
        charge(ledger, limits, -ask.tokens, self._clock())

    async def renew(self, held: Mapping[ObjectKey, Iterable[str]]) -> None:
        """Nothing: what is open here ends with this process."""

    def _ledger(self, tenant: ObjectKey) -> Ledger:
        ledger = self._ledgers.get(tenant)
        if ledger is None:
            ledger = self._ledgers[tenant] = Ledger(at=self._clock())
        return ledger
