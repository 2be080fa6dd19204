"""What a dashboard is made of, and the PromQL that its panels share. Used by the pages; generate.py writes them.

Engines' series carry `pool` (namespace/name) and `replica`, which the PodMonitors of the chart put on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
