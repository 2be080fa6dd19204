"""Figures of every pool, made when somebody scrapes. Fed by the pools' tasks; holds their last snapshots."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from lorafleet_operator.core.figures import count_pool
from lorafleet_operator.core.snapshot import PoolSnapshot

MAX_POOLS = 200
"""Pools with series of their own; those that come later have none until others are gone."""


class PoolBoard(Collector):
    """The last snapshot of each pool, by uid."""

    def __init__(self) -> None:
        self._snapshots: dict[str, PoolSnapshot] = {}

    def show(self, snapshot: PoolSnapshot) -> None:
        """This is how a pool stands."""
        self._snapshots[snapshot.pool.meta.uid] = snapshot

    def forget(self, uid: str) -> None:
        """The pool is gone, or another process decides for it."""
        self._snapshots.pop(uid, None)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Names alone: registering costs no count."""
        yield from self._families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See Collector."""
        objectives, replicas, objects = self._families()
        # A copy: the tasks go on while a scrape is answered.
        for snapshot in list(self._snapshots.values())[:MAX_POOLS]:
            figures = count_pool(snapshot)
            for name, seconds in figures.objectives.items():
                objectives.add_metric([figures.pool, name], seconds)
            for state, count in (("wanted", figures.wanted), ("ready", figures.ready)):
                replicas.add_metric([figures.pool, state], count)
            for (kind, reason), count in sorted(figures.objects.items()):
                objects.add_metric([figures.pool, kind, reason], count)
        yield from (objectives, replicas, objects)

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "lorafleet_pool_objective_seconds", "What a pool aims at: spec.slo.", labels=["pool", "objective"]
            ),
            GaugeMetricFamily(
                "lorafleet_pool_replicas", "Engine replicas of all sets, wanted and ready.", labels=["pool", "state"]
            ),
            GaugeMetricFamily(
                "lorafleet_pool_objects",
                "The pool, its adapters and tenants by the reason of their Ready condition.",
                labels=["pool", "kind", "reason"],
            ),
        )
