"""Counts tokens by tenant, adapter and gateway instance, for the state port: each gateway debits only its own rows.

Counters only grow during a boot. Rows are bounded; what comes above goes to one row named "other".
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lorafleet_contracts.admin import UsageState

MAX_ROWS = 4096
OTHER = "other"


@dataclass(frozen=True, slots=True)
class UsageKey:
    """Who asked for what through whom. `adapter` is a version key or "base"."""

    tenant: str
    adapter: str
    gateway: str


class UsageTable:
    """Monotonic counters by key."""

    def __init__(self) -> None:
        self._rows: dict[UsageKey, list[int]] = {}

    def add(self, key: UsageKey, prompt_tokens: int, completion_tokens: int, seq: int) -> None:
        """Count one ended request, as change `seq` of what the state port shows."""
        if key not in self._rows and len(self._rows) >= MAX_ROWS:
            key = UsageKey(OTHER, OTHER, key.gateway if len(self._rows) < 2 * MAX_ROWS else OTHER)
        row = self._rows.setdefault(key, [0, 0, 0, 0])
        row[0] += 1
        row[1] += prompt_tokens
        row[2] += completion_tokens
        row[3] = seq

    def rows(self, gateway: str | None = None, since: int = 0) -> Iterable[UsageState]:
        """All counters, or those of one gateway instance that have changed after `since`."""
        for key, (requests, prompt, completion, seq) in self._rows.items():
            if gateway is not None and (key.gateway != gateway or seq <= since):
                continue
            yield UsageState(
                tenant=key.tenant,
                adapter=key.adapter,
                gateway=key.gateway,
                requests=requests,
                prompt_tokens=prompt,
                completion_tokens=completion,
            )
