"""The page of the whole fleet: everything at a glance."""

from dashboards.panels import REQUESTS, TOKENS, Dashboard, Panel, Query, quantile, rate, share


def fleet() -> Dashboard:
    """Everything at a glance."""
    return Dashboard("fleet", "LoraFleet / Fleet", (*_traffic(), *_gateway(), *_operator()))


def _traffic() -> tuple[Panel, ...]:
    """What clients get, and how many objects stand well."""
    failed = rate(REQUESTS, "pool", 'code=~"5.."')
    return (
        Panel("Requests answered by engines", "reqps", [Query(rate(REQUESTS, "pool"), "{{pool}}")]),
        Panel("Share that failed (5xx)", "percentunit", [Query(share(failed, rate(REQUESTS, "pool")), "{{pool}}")]),
        Panel("Tokens", "short", [Query(rate(TOKENS, "pool, kind"), "{{pool}} {{kind}}")], "Per second."),
        Panel(
            "Replicas",
            "short",
            [
                Query('max by (pool) (lorafleet_pool_replicas{state="ready"})', "{{pool}} ready"),
                Query('max by (pool) (lorafleet_pool_replicas{state="wanted"})', "{{pool}} wanted"),
            ],
        ),
        Panel(
            "Objects that are not Ready",
            "short",
            [
                Query(
                    "sum by (kind, reason) (max by (pool, kind, reason) "
                    '(lorafleet_pool_objects{reason!~"Ready|Suspended"}))',
                    "{{kind}} {{reason}}",
                )
            ],
        ),
    )


def _gateway() -> tuple[Panel, ...]:
    """The gateway: its answers, its tables, its limits."""
    return (
        Panel(
            "What the gateway answered",
            "reqps",
            [Query(rate("lorafleet_gateway_answers_total", "answer"), "{{answer}}")],
        ),
        Panel(
            "Time to pick a replica",
            "s",
            [Query(quantile(q, "lorafleet_gateway_pick_seconds"), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)],
        ),
        Panel(
            "Age of the routing tables",
            "s",
            [Query("max by (pod) (lorafleet_gateway_table_age_seconds)", "{{pod}}")],
            "Since the API server was last heard of.",
        ),
        Panel(
            "Engines that gateways hear of",
            "short",
            [Query("sum by (pod, state) (lorafleet_gateway_replicas)", "{{pod}} {{state}}")],
        ),
        Panel("Requests that wait for an adapter", "short", [Query("sum(lorafleet_gateway_cold_waiting)", "waiting")]),
        Panel(
            "Over their limits",
            "reqps",
            [
                Query(
                    "topk(10, " + rate("lorafleet_gateway_throttled_total", "tenant, limit") + ")",
                    "{{tenant}} {{limit}}",
                )
            ],
            "The ten tenants that are refused most.",
        ),
        Panel(
            "Store of the limits",
            "short",
            [
                Query("min by (when_down) (lorafleet_gateway_limits_store_up)", "up, else {{when_down}}"),
                Query(rate("lorafleet_gateway_limits_without_store_total", "pod"), "{{pod}} without it"),
                Query("sum(lorafleet_gateway_limited_open_requests)", "open requests that are counted"),
            ],
        ),
    )


def _operator() -> tuple[Panel, ...]:
    """The operator."""
    return (
        Panel(
            "Operator",
            "short",
            [Query("sum(lorafleet_operator_leading)", "leaders"), Query("sum(lorafleet_operator_pools)", "pools")],
        ),
        Panel(
            "What the operator does",
            "ops",
            [
                Query(rate("lorafleet_operator_plans_total", "outcome"), "plan {{outcome}}"),
                Query(rate("lorafleet_operator_engine_calls_total", "call"), "{{call}}"),
                Query(rate("lorafleet_operator_status_writes_total", "kind"), "status {{kind}}"),
            ],
        ),
        Panel(
            "Time to observe and plan",
            "s",
            [Query(quantile(q, "lorafleet_operator_plan_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)],
        ),
    )
