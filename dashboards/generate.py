"""Writes the Grafana dashboards of the chart: `make dashboards`. A panel is a title, a unit and its queries.

Engines' series carry `pool` (namespace/name) and `replica`, which the PodMonitors of the chart put on them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "charts" / "lorafleet" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, ACROSS = 8, 8, 3
REQUESTS, LOOKUPS, TOKENS = (
    "lorafleet_adapter_requests_total",
    "lorafleet_adapter_lookups_total",
    "lorafleet_tokens_total",
)
FIRST, WHOLE = "lorafleet_adapter_ttft_seconds", "lorafleet_adapter_request_seconds"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and what its lines are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time. `unit` as Grafana names it."""

    title: str
    unit: str
    queries: Sequence[Query]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page. `variable` is the label that it is about, read from the series of `of`."""

    name: str
    title: str
    panels: Sequence[Panel]
    variable: str = ""
    of: str = ""


def rate(metric: str, by: str, selector: str = "", window: str = "$__rate_interval") -> str:
    """A counter per second, summed."""
    return (
        f"sum by ({by}) (rate({metric}{{{selector}}}[{window}]))"
        if selector
        else (f"sum by ({by}) (rate({metric}[{window}]))")
    )


def quantile(share: float, histogram: str, by: str = "", selector: str = "") -> str:
    """A quantile of a histogram, over all that is not in `by`."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share:g}, {rate(f'{histogram}_bucket', labels, selector)})"


def share(part: str, whole: str) -> str:
    """A ratio: 0, and not nothing, where there is no part of a whole yet."""
    return f"({part} or 0 * {whole}) / {whole}"


def objective(name: str) -> Query:
    """The line that a pool aims to stay below."""
    return Query(f'max(lorafleet_pool_objective_seconds{{pool="$pool", objective="{name}"}})', f"slo.{name}")


def fleet() -> Dashboard:
    """Everything at a glance."""
    failed = rate(REQUESTS, "pool", 'code=~"5.."')
    return Dashboard(
        "fleet",
        "LoraFleet / Fleet",
        (
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
            Panel(
                "Requests that wait for an adapter", "short", [Query("sum(lorafleet_gateway_cold_waiting)", "waiting")]
            ),
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
        ),
    )


def pool() -> Dashboard:
    """One pool: its latency against its objectives, its memory, its adapters by tier."""
    mine = 'pool="$pool"'

    def figure(metric: str, legend: str) -> Query:
        return Query(f"sum by (replica) (lorafleet_{metric}{{{mine}}})", legend)

    return Dashboard(
        "pool",
        "LoraFleet / Pool",
        (
            Panel("Requests", "reqps", [Query(rate(REQUESTS, "code", mine), "{{code}}")]),
            Panel(
                "Time to the first token",
                "s",
                [
                    *(
                        Query(quantile(q, "lorafleet_ttft_seconds", "", mine), f"p{q * 100:g}")
                        for q in (0.5, 0.95, 0.99)
                    ),
                    objective("ttft"),
                ],
                "From when its adapter was on the GPU.",
            ),
            Panel(
                "Time between tokens",
                "s",
                [
                    *(Query(quantile(q, "lorafleet_itl_seconds", "", mine), f"p{q * 100:g}") for q in (0.5, 0.99)),
                    objective("itl"),
                ],
            ),
            Panel(
                "Wait for a cold adapter, p95",
                "s",
                [
                    Query(quantile(0.95, "lorafleet_cold_load_seconds", "start_tier", mine), "from {{start_tier}}"),
                    objective("coldLoad"),
                ],
            ),
            Panel("Where requests found their adapter", "reqps", [Query(rate(LOOKUPS, "tier", mine), "{{tier}}")]),
            Panel(
                "Loads by phase, p95",
                "s",
                [
                    Query(
                        quantile(0.95, "lorafleet_load_seconds", "phase, start_tier", mine),
                        "{{phase}} from {{start_tier}}",
                    )
                ],
            ),
            Panel(
                "Replicas",
                "short",
                [Query(f"max by (state) (lorafleet_pool_replicas{{{mine}}})", "{{state}}")],
            ),
            Panel(
                "Adapters and tenants by verdict",
                "short",
                [Query(f"max by (kind, reason) (lorafleet_pool_objects{{{mine}}})", "{{kind}} {{reason}}")],
            ),
            Panel(
                "Batch",
                "short",
                [figure("requests_running", "{{replica}} running"), figure("requests_waiting", "{{replica}} waiting")],
            ),
            Panel(
                "Wait in the queue, p95", "s", [Query(quantile(0.95, "lorafleet_queue_wait_seconds", "", mine), "p95")]
            ),
            Panel(
                "Adapters on the GPU",
                "bytes",
                [
                    figure("resident_adapter_bytes", "{{replica}} used"),
                    figure("adapter_budget_bytes", "{{replica}} budget"),
                ],
            ),
            Panel(
                "Adapters by tier",
                "bytes",
                [Query(f"sum by (tier) (lorafleet_resident_bytes{{{mine}}})", "{{tier}}")],
            ),
            Panel("Resident adapters", "short", [figure("resident_adapters", "{{replica}}")]),
            Panel("Evictions", "ops", [Query(rate("lorafleet_adapter_evictions_total", "tier", mine), "{{tier}}")]),
            Panel(
                "KV pages",
                "percentunit",
                [
                    Query(
                        share(
                            f"sum by (replica) (lorafleet_kv_pages_used{{{mine}}})",
                            f"sum by (replica) (lorafleet_pages{{{mine}}})",
                        ),
                        "{{replica}}",
                    )
                ],
            ),
            Panel(
                "Last step",
                "short",
                [figure("step_adapters", "{{replica}} adapters"), figure("step_rank_sum", "{{replica}} sum of ranks")],
            ),
            Panel(
                "Prompt tokens found computed",
                "percentunit",
                [
                    Query(
                        share(
                            f"sum(lorafleet_prefix_hit_tokens{{{mine}}})",
                            f"sum(lorafleet_prefix_queried_tokens{{{mine}}})",
                        ),
                        "since start",
                    )
                ],
            ),
            Panel(
                "Trouble",
                "short",
                [
                    figure("loader_restarts", "{{replica}} loader restarts"),
                    figure("preemptions", "{{replica}} preemptions"),
                ],
            ),
        ),
        variable="pool",
        of="lorafleet_pool_replicas",
    )


def adapter() -> Dashboard:
    """One adapter, over all pools, replicas and tenants."""
    mine = 'adapter="$adapter"'
    return Dashboard(
        "adapter",
        "LoraFleet / Adapter",
        (
            Panel("Requests", "reqps", [Query(rate(REQUESTS, "code", mine), "{{code}}")]),
            Panel("Requests by tenant", "reqps", [Query(rate(REQUESTS, "tenant", mine), "{{tenant}}")]),
            Panel("Tokens", "short", [Query(rate(TOKENS, "kind", mine), "{{kind}}")], "Per second."),
            Panel(
                "Time to the first token",
                "s",
                [Query(quantile(q, FIRST, "", mine), f"p{q * 100:g}") for q in (0.5, 0.95)],
                "From the request's arrival, cold load included.",
            ),
            Panel("Whole answers", "s", [Query(quantile(q, WHOLE, "", mine), f"p{q * 100:g}") for q in (0.5, 0.95)]),
            Panel("Where requests found it", "reqps", [Query(rate(LOOKUPS, "tier", mine), "{{tier}}")]),
            Panel(
                "Share of requests that found it cold",
                "percentunit",
                [
                    Query(
                        share(rate(LOOKUPS, "adapter", f'{mine}, tier!="gpu"'), rate(LOOKUPS, "adapter", mine)), "cold"
                    )
                ],
            ),
        ),
        variable="adapter",
        of=REQUESTS,
    )


def tenant() -> Dashboard:
    """One tenant, over all its adapters."""
    mine = 'tenant="$tenant"'
    return Dashboard(
        "tenant",
        "LoraFleet / Tenant",
        (
            Panel("Requests", "reqps", [Query(rate(REQUESTS, "code", mine), "{{code}}")]),
            Panel("Requests by adapter", "reqps", [Query(rate(REQUESTS, "adapter", mine), "{{adapter}}")]),
            Panel("Tokens", "short", [Query(rate(TOKENS, "kind", mine), "{{kind}}")], "Per second."),
            Panel(
                "Refused by the gateway",
                "reqps",
                [Query(rate("lorafleet_gateway_refusals_total", "code", mine), "{{code}}")],
            ),
            Panel(
                "Over its limits",
                "reqps",
                [Query(rate("lorafleet_gateway_throttled_total", "limit", mine), "{{limit}}")],
            ),
            Panel(
                "Time to the first token",
                "s",
                [Query(quantile(q, FIRST, "", mine), f"p{q * 100:g}") for q in (0.5, 0.95)],
                "From the request's arrival, cold load included.",
            ),
            Panel("Whole answers", "s", [Query(quantile(q, WHOLE, "", mine), f"p{q * 100:g}") for q in (0.5, 0.95)]),
            Panel("Where requests found their adapter", "reqps", [Query(rate(LOOKUPS, "tier", mine), "{{tier}}")]),
        ),
        variable="tenant",
        of=REQUESTS,
    )


def build(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    return {
        "uid": f"lorafleet-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["lorafleet"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "links": [
            {"type": "dashboards", "tags": ["lorafleet"], "title": "LoraFleet", "asDropdown": True, "includeVars": True}
        ],
        "panels": [_panel(number, each) for number, each in enumerate(dashboard.panels)],
    }


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    if not dashboard.variable:
        return [source]
    query = f"label_values({dashboard.of}, {dashboard.variable})"
    name = {"name": dashboard.variable, "label": dashboard.variable.capitalize()}
    return [source, {**name, "type": "query", "datasource": SOURCE, "query": query, "refresh": 2, "sort": 1}]


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    place = {"x": number % ACROSS * WIDTH, "y": number // ACROSS * HEIGHT, "w": WIDTH, "h": HEIGHT}
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": each.expression, "legendFormat": each.legend}
        for index, each in enumerate(panel.queries)
    ]
    look = {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []}
    head = {"id": number + 1, "type": "timeseries", "title": panel.title, "description": panel.text}
    return {**head, "datasource": SOURCE, "gridPos": place, "fieldConfig": look, "targets": targets}


def rendered() -> dict[str, str]:
    """File name -> JSON of every dashboard."""
    pages = (fleet(), pool(), adapter(), tenant())
    return {f"{each.name}.json": json.dumps(build(each), indent=1) + "\n" for each in pages}


def main() -> None:
    """Write them all."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
