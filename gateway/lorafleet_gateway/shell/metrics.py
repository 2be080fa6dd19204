"""The gateway's own metrics. Written by picker.py, read by health.py; holds no state of the gateway."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lorafleet_contracts.series import SeriesCap

MAX_TENANTS = 1000
"""Tenants with series of their own."""


class Metrics:
    """One registry with everything that a gateway instance exports."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answers = Counter(
            "lorafleet_gateway_answers_total",
            "Requests by what the picker answered: `picked`, `models`, or the code of a refusal.",
            ["answer"],
            registry=self.registry,
        )
        self.pick_seconds = Histogram(
            "lorafleet_gateway_pick_seconds",
            "From a request's headers to the picker's answer.",
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5),
            registry=self.registry,
        )
        self.table_age = Gauge(
            "lorafleet_gateway_table_age_seconds",
            "Since the last sign of life of the API server's watches.",
            registry=self.registry,
        )
        self.replicas = Gauge(
            "lorafleet_gateway_replicas",
            "Engine replicas by whether their state port answers.",
            ["state"],
            registry=self.registry,
        )
        self.cold_waiting = Gauge(
            "lorafleet_gateway_cold_waiting",
            "Requests that wait for an adapter that no replica holds yet.",
            registry=self.registry,
        )
        self._throttled = Counter(
            "lorafleet_gateway_throttled_total",
            "Requests refused because their tenant was over a limit.",
            ["tenant", "limit"],
            registry=self.registry,
        )
        self.store_up = Gauge(
            "lorafleet_gateway_limits_store_up",
            "Whether the shared store of limits answers, and what applies while it does not.",
            ["when_down"],
            registry=self.registry,
        )
        self.without_store = Counter(
            "lorafleet_gateway_limits_without_store_total",
            "Requests of limited tenants that came while the shared store was away.",
            registry=self.registry,
        )
        self.open_requests = Gauge(
            "lorafleet_gateway_limited_open_requests",
            "Requests of tenants with limited tokens or concurrency that have not ended.",
            registry=self.registry,
        )
        self._tenants = SeriesCap(MAX_TENANTS)
        self._refusals = Counter(
            "lorafleet_gateway_refusals_total",
            "Requests of a tenant that got no engine, by the code of the refusal.",
            ["tenant", "code"],
            registry=self.registry,
        )

    def count_refusal(self, tenant: str, code: str) -> None:
        """A request of `namespace/name` that was refused after its key was found good."""
        self._refusals.labels(*self._tenants.fold(tenant), code).inc()

    def count_throttled(self, tenant: str, limit: str) -> None:
        """A request of `namespace/name` that was over one of its limits."""
        self._throttled.labels(*self._tenants.fold(tenant), limit).inc()
