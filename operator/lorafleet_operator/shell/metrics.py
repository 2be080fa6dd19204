"""The operator's own figures. One registry a process, made by main.py and handed down; series are few and bounded."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lorafleet_operator.shell.pool_metrics import PoolBoard


class Metrics:
    """Counters of what the operator does; labels are kinds and outcomes. Names of pools are on the board alone."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = Gauge("lorafleet_operator_leading", "1 while this process leads.", registry=self.registry)
        self.pools = Gauge("lorafleet_operator_pools", "Pools with a running task.", registry=self.registry)
        self.plans = Counter("lorafleet_operator_plans", "Plans made.", ["outcome"], registry=self.registry)
        self.plan_seconds = Histogram(
            "lorafleet_operator_plan_seconds",
            "Time to observe and plan.",
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10),
            registry=self.registry,
        )
        self.applies = Counter(
            "lorafleet_operator_applies", "Server-side applies of own objects.", ["kind", "outcome"],
            registry=self.registry,
        )  # fmt: skip
        self.statuses = Counter("lorafleet_operator_status_writes", "Status writes.", ["kind"], registry=self.registry)
        self.board = PoolBoard()
        self.registry.register(self.board)
        self._differences: dict[str, int] = {}
        difference = Gauge(
            "lorafleet_operator_budget_difference_percent",
            "How far engines' memory is off what was predicted, of the pool where it is most.",
            registry=self.registry,
        )
        difference.set_function(lambda: max(self._differences.values(), default=0))
        self.authority_expires = Gauge(
            "lorafleet_operator_authority_expires_timestamp_seconds",
            "When the authority of the engines' certificates expires; 0: there is none that can be used.",
            registry=self.registry,
        )
        self.calls = Counter("lorafleet_operator_engine_calls", "Admin calls.", ["call"], registry=self.registry)
        self.port_keys_due = Gauge(
            "lorafleet_operator_port_keys_due_timestamp_seconds",
            "Since or from when on the port keys are to be rotated (0: never).",
            registry=self.registry,
        )

    def note_difference(self, pool: str, percent: int | None) -> None:
        """A pool (by uid) whose engines' memory is so far off; None: not known, or the pool is gone."""
        self._differences.pop(pool, None)
        if percent is not None:
            self._differences[pool] = percent

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
