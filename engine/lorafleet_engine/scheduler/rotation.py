"""Which adapters may run when a cap binds: a ring whose head always runs, turned every QUANTUM steps.

Used by scheduler.py only. With equal ranks every live adapter runs within ceil(live / cap) x QUANTUM steps.
"""

from collections.abc import Mapping

QUANTUM = 16


class Rotation:
    """Chooses at most `distinct` adapters whose ranks sum to at most `rank_sum`."""

    def __init__(self, distinct: int, rank_sum: int) -> None:
        self._distinct = distinct
        self._rank_sum = rank_sum
        self._ring: dict[int, None] = {}
        self._ran: frozenset[int] = frozenset()
        self._held = 0

    def select(self, live: Mapping[int, int]) -> frozenset[int]:
        """Return the adapters of the next step. `live` maps each adapter that has work to its rank."""
        self._ring = {owner: None for owner in (*self._ring, *live) if owner in live}
        if self._held == QUANTUM:
            # Those that ran go to the back; one that would only now fill a gap has not had its turn.
            self._held = 0
            self._ring = dict.fromkeys((*(o for o in self._ring if o not in self._ran), *self._ring))
        self._ran = self._first_fit(live)
        self._held = 0 if len(self._ran) == len(live) else self._held + 1
        return self._ran

    def waits(self, owner: int) -> bool:
        """Whether an adapter had work in the last step and was not among those that ran."""
        return owner in self._ring and owner not in self._ran

    def _first_fit(self, live: Mapping[int, int]) -> frozenset[int]:
        chosen: set[int] = set()
        ranks = 0
        for owner in self._ring:
            if len(chosen) == self._distinct:
                break
            if ranks + live[owner] <= self._rank_sum:
                chosen.add(owner)
                ranks += live[owner]
        return frozenset(chosen)
