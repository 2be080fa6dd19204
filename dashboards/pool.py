"""The page of one pool: its latency against its objectives, its memory, its adapters by tier."""

from dashboards.panels import LOOKUPS, REQUESTS, Dashboard, Panel, Query, objective, quantile, rate, share

_MINE = 'pool="$pool"'


def pool() -> Dashboard:
    """One pool, chosen by its name."""
    panels = (*_latency(), *_replicas(), *_memory(), *_steps())
    return Dashboard("pool", "LoraFleet / Pool", panels, variable="pool", of="lorafleet_pool_replicas")


def _latency() -> tuple[Panel, ...]:
    """Latency against the objectives."""
    return (
        Panel("Requests", "reqps", [Query(rate(REQUESTS, "code", _MINE), "{{code}}")]),
        Panel(
            "Time to the first token",
            "s",
            [
                *(Query(quantile(q, "lorafleet_ttft_seconds", "", _MINE), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)),
                objective("ttft"),
            ],
            "From when its adapter was on the GPU.",
        ),
        Panel(
            "Time between tokens",
            "s",
            [
                *(Query(quantile(q, "lorafleet_itl_seconds", "", _MINE), f"p{q * 100:g}") for q in (0.5, 0.99)),
                objective("itl"),
            ],
        ),
        Panel(
            "Wait for a cold adapter, p95",
            "s",
            [
                Query(quantile(0.95, "lorafleet_cold_load_seconds", "start_tier", _MINE), "from {{start_tier}}"),
                objective("coldLoad"),
            ],
        ),
        Panel("Where requests found their adapter", "reqps", [Query(rate(LOOKUPS, "tier", _MINE), "{{tier}}")]),
        Panel(
            "Loads by phase, p95",
            "s",
            [
                Query(
                    quantile(0.95, "lorafleet_load_seconds", "phase, start_tier", _MINE),
                    "{{phase}} from {{start_tier}}",
                )
            ],
        ),
    )


def _replicas() -> tuple[Panel, ...]:
    """Replicas, verdicts and batches."""
    return (
        Panel(
            "Replicas",
            "short",
            [Query(f"max by (state) (lorafleet_pool_replicas{{{_MINE}}})", "{{state}}")],
        ),
        Panel(
            "Adapters and tenants by verdict",
            "short",
            [Query(f"max by (kind, reason) (lorafleet_pool_objects{{{_MINE}}})", "{{kind}} {{reason}}")],
        ),
        Panel(
            "Batch",
            "short",
            [_figure("requests_running", "{{replica}} running"), _figure("requests_waiting", "{{replica}} waiting")],
        ),
        Panel("Wait in the queue, p95", "s", [Query(quantile(0.95, "lorafleet_queue_wait_seconds", "", _MINE), "p95")]),
    )


def _memory() -> tuple[Panel, ...]:
    """What the replicas hold."""
    return (
        Panel(
            "Adapters on the GPU",
            "bytes",
            [
                _figure("resident_adapter_bytes", "{{replica}} used"),
                _figure("adapter_budget_bytes", "{{replica}} budget"),
            ],
        ),
        Panel(
            "Adapters by tier",
            "bytes",
            [Query(f"sum by (tier) (lorafleet_resident_bytes{{{_MINE}}})", "{{tier}}")],
        ),
        Panel("Resident adapters", "short", [_figure("resident_adapters", "{{replica}}")]),
        Panel("Evictions", "ops", [Query(rate("lorafleet_adapter_evictions_total", "tier", _MINE), "{{tier}}")]),
        Panel(
            "KV pages",
            "percentunit",
            [
                Query(
                    share(
                        f"sum by (replica) (lorafleet_kv_pages_used{{{_MINE}}})",
                        f"sum by (replica) (lorafleet_pages{{{_MINE}}})",
                    ),
                    "{{replica}}",
                )
            ],
        ),
        Panel(
            "Last step",
            "short",
            [_figure("step_adapters", "{{replica}} adapters"), _figure("step_rank_sum", "{{replica}} sum of ranks")],
        ),
    )


def _steps() -> tuple[Panel, ...]:
    """What the engines do."""
    return (
        Panel(
            "Prompt tokens found computed",
            "percentunit",
            [
                Query(
                    share(
                        f"sum(lorafleet_prefix_hit_tokens{{{_MINE}}})",
                        f"sum(lorafleet_prefix_queried_tokens{{{_MINE}}})",
                    ),
                    "since start",
                )
            ],
        ),
        Panel(
            "Trouble",
            "short",
            [
                _figure("loader_restarts", "{{replica}} loader restarts"),
                _figure("preemptions", "{{replica}} preemptions"),
            ],
        ),
    )


def _figure(metric: str, legend: str) -> Query:
    return Query(f"sum by (replica) (lorafleet_{metric}{{{_MINE}}})", legend)
