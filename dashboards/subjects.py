"""The pages of one adapter and of one tenant, over all pools and replicas."""

from dashboards.panels import FIRST, LOOKUPS, REQUESTS, TOKENS, WHOLE, Dashboard, Panel, Query, quantile, rate, share


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
            *_latency(mine),
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
            *_latency(mine),
            Panel("Where requests found their adapter", "reqps", [Query(rate(LOOKUPS, "tier", mine), "{{tier}}")]),
        ),
        variable="tenant",
        of=REQUESTS,
    )


def _latency(mine: str) -> tuple[Panel, ...]:
    """How long the requests of one adapter or tenant take."""
    return (
        Panel(
            "Time to the first token",
            "s",
            [Query(quantile(q, FIRST, "", mine), f"p{q * 100:g}") for q in (0.5, 0.95)],
            "From the request's arrival, cold load included.",
        ),
        Panel("Whole answers", "s", [Query(quantile(q, WHOLE, "", mine), f"p{q * 100:g}") for q in (0.5, 0.95)]),
    )
