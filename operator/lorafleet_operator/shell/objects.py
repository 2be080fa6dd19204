"""What the API server is known to hold of one pool's objects: the local half of the diff. A cache of the pool's task.

execute.py notes the outcome of every apply here; observe.py asks which fingerprints still stand.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lorafleet_operator.shell.records import SetRecord

REFRESH_SECONDS = 300.0
"""Objects that are not watched (all but StatefulSets) are applied again so often, in case somebody changed them."""
EVENT_SECONDS = 10.0
"""How long a new object may take to come back as an event."""
REFUSED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Applied:
    fingerprint: str
    at: float
    generation: int
    refusal: str


class AppliedObjects:
    """Outcomes of the last applies by "Kind/name"."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._applied: dict[str, _Applied] = {}

    def note(self, key: str, fingerprint: str, generation: int) -> None:
        """An apply went through; `generation` is that of the answer (0: the kind has none)."""
        self._applied[key] = _Applied(fingerprint, self._clock(), generation, "")

    def note_refusal(self, key: str, fingerprint: str, message: str) -> None:
        """The API server does not want this content."""
        self._applied[key] = _Applied(fingerprint, self._clock(), 0, message)

    def forget(self, key: str) -> None:
        """An object is gone."""
        self._applied.pop(key, None)

    def standing(self, sets: Iterable[SetRecord]) -> dict[str, str]:
        """Fingerprints that need no new apply; `sets` are the StatefulSets as they are."""
        known = {f"StatefulSet/{each.name}": each for each in sets}
        return {key: each.fingerprint for key, each in self._applied.items() if self._stands(key, each, known.get(key))}

    def refusals(self) -> tuple[str, ...]:
        """What the API server said against objects that it does not want."""
        return tuple(f"{key}: {each.refusal}" for key, each in sorted(self._applied.items()) if each.refusal)

    def _stands(self, key: str, applied: _Applied, workload: SetRecord | None) -> bool:
        age = self._clock() - applied.at
        if applied.refusal:
            return age < REFUSED_SECONDS
        if not key.startswith("StatefulSet/"):
            return age < REFRESH_SECONDS
        if workload is None:
            return age < EVENT_SECONDS
        return workload.generation <= applied.generation
