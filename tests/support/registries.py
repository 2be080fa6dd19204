"""The metrics of all three programs, every label set of every metric used at least once. Called by tests of bounds and
of queries."""

from prometheus_client import CollectorRegistry

from lorafleet_contracts.admin import Tier
from lorafleet_contracts.capacity import MemoryBudget
from lorafleet_engine.messages import LoopCounters, LoopState
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


STATE = LoopState(
    budget=MemoryBudget(total=100, weights=50, activations=5, adapters=30, kv=15, kv_tokens=64),
    adapter_bytes=10,
    pages=100,
    pages_free=50,
    pages_adapters=20,
    pages_kv=30,
    running=2,
    waiting=1,
    versions=(),
    counters=LoopCounters(prefix_queried_tokens=10, prefix_hit_tokens=5),
    step_ms=5.0,
    step_adapters=2,
    step_rank_sum=24,
    draining=False,
)


def drive_engine(pairs: int, metrics: EngineMetrics | None = None) -> CollectorRegistry:
    """An engine that so many pairs of adapter and tenant used, once more where it is given."""
    metrics = metrics or EngineMetrics()
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
    metrics.observe_first(0.1, 0.01)
    metrics.observe_gap(0.01)
    metrics.render(STATE, LoaderFigures(0, dict.fromkeys(Tier, 1)), str)
    return metrics.registry


def drive_gateway(tenants: int, metrics: GatewayMetrics | None = None) -> CollectorRegistry:
    """A gateway that refused requests of so many tenants, once more where it is given."""
    metrics = metrics or GatewayMetrics()
    for number in range(tenants):
        metrics.count_refusal(f"team/tenant-{number}", "model_not_found")
        for limit in LIMITS:
            metrics.count_throttled(f"team/tenant-{number}", limit)
    for when_down in ("Open", "Closed"):
        metrics.store_up.labels(when_down).set(1)
    for state in ("known", "unknown"):
        metrics.replicas.labels(state).set(1)
    metrics.answers.labels("picked").inc()
    metrics.pick_seconds.observe(0.001)
    return metrics.registry


def drive_operator(pools: int, metrics: OperatorMetrics | None = None) -> OperatorMetrics:
    """An operator that decides for so many pools, once more where it is given."""
    metrics = metrics or OperatorMetrics()
    for number in range(pools):
        pool = make_pool(f"pool-{number}")
        metrics.board.show(make_snapshot(pool=pool, adapters=(make_adapter("a"),), tenants=(make_tenant("t"),)))
    metrics.plan_seconds.observe(0.01)
    for outcome in ("empty", "work"):
        metrics.plans.labels(outcome).inc()
    for outcome in ("done", "refused"):
        metrics.applies.labels("StatefulSet", outcome).inc()
    for kind in ("LoraPool", "LoraAdapter", "Tenant"):
        metrics.statuses.labels(kind).inc()
    for call in ("inspect", "load", "unload"):
        metrics.calls.labels(call).inc()
    return metrics
