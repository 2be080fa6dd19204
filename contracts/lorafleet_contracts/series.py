"""How many series the metrics of a program may have: names of users' objects are let through up to a limit.

Used by the metrics of engine and gateway; knows nothing of Prometheus.
"""

OTHER = "other"


class SeriesCap:
    """Lets the first `limit` label sets through and folds all later ones into `other`, for the process's life: a series
    that moved from one to the other would break rate()."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[tuple[str, ...]] = set()

    def fold(self, *labels: str) -> tuple[str, ...]:
        """The labels to use."""
        if labels in self._seen:
            return labels
        if len(self._seen) >= self._limit:
            return (OTHER,) * len(labels)
        self._seen.add(labels)
        return labels
