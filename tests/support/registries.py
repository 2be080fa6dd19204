"""The metrics of all three programs, every label set of every metric used at least once. Called by tests of bounds and
of queries."""

from prometheus_client import CollectorRegistry

from lorafleet_contracts.admin import Tier
from lorafleet_engine.server.metrics import LoaderFigures
from lorafleet_engine.server.metrics import Metrics as EngineMetrics
from lorafleet_gateway.core.limits import Limit
from lorafleet_gateway.shell.metrics import Metrics as GatewayMetrics
from lorafleet_operator.shell.metrics import Metrics as OperatorMetrics
from tests.support.fleet import make_adapter, make_pool, make_snapshot, make_tenant

CODES = (200, 400, 401, 404, 413, 422, 429, 499, 500, 503)
"""Every status that the engine's serving port answers with."""
TIERS = ("gpu", "host", "disk", "source")
LIMITS = tuple(Limit)
PHASES = ("fetch", "verify", "pack", "read", "load")


def drive_engine(pairs: int) -> CollectorRegistry:
    """An engine that so many pairs of adapter and tenant used."""
    metrics = EngineMetrics()
    for number in range(pairs):
        who = f"team/adapter-{number}", f"team/tenant-{number}"
        for code in CODES:
            metrics.count_request(*who, code, 1.0)
        metrics.count_tokens(*who, 1, 1)
        metrics.observe_adapter_first(*who, 1.0)
        for tier in TIERS:
            metrics.count_lookup(*who, tier)
    for tier in TIERS:
        metrics.observe_cold(tier, 1.0)
        metrics.count_eviction(tier)
        for phase in PHASES:
            metrics.observe_load(phase, tier, 1.0)
    metrics.render(None, LoaderFigures(0, dict.fromkeys(Tier, 1)), str)
    return metrics.registry


def drive_gateway(tenants: int) -> CollectorRegistry:
    """A gateway that refused requests of so many tenants."""
    metrics = GatewayMetrics()
    for number in range(tenants):
        metrics.count_refusal(f"team/tenant-{number}", "model_not_found")
        for limit in LIMITS:
            metrics.count_throttled(f"team/tenant-{number}", limit)
    for when_down in ("Open", "Closed"):
        metrics.store_up.labels(when_down).set(1)
    for state in ("known", "unknown"):
        metrics.replicas.labels(state).set(1)
    metrics.answers.labels("picked").inc()
    return metrics.registry


def drive_operator(pools: int) -> OperatorMetrics:
    """An operator that decides for so many pools."""
    metrics = OperatorMetrics()
    for number in range(pools):
        pool = make_pool(f"pool-{number}")
        metrics.board.show(make_snapshot(pool=pool, adapters=(make_adapter("a"),), tenants=(make_tenant("t"),)))
    for outcome in ("empty", "work"):
        metrics.plans.labels(outcome).inc()
    for outcome in ("done", "refused"):
        metrics.applies.labels("StatefulSet", outcome).inc()
    for kind in ("LoraPool", "LoraAdapter", "Tenant"):
        metrics.statuses.labels(kind).inc()
    for call in ("inspect", "load", "unload"):
        metrics.calls.labels(call).inc()
    return metrics
