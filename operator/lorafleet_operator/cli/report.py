"""A forecast as one HTML page that loads nothing. Called by `lorafleet plan --report`; computes nothing."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lorafleet_operator.simulation.charts import Panel, draw
from lorafleet_operator.simulation.forecast import Forecast
from lorafleet_operator.simulation.measures import Sample

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#111827}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{padding:.25rem .75rem;border-bottom:1px solid #e5e7eb}
th,td{text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}
"""
SHOWN = 200
STAGES = ("at_s", "tenant", "stage", "reason", "set", "message")


def render(found: Forecast) -> str:
    """The page."""
    wire = found.wire()
    facts = [
        ("GPUs needed", found.gpus),
        ("GPUs, mean", f"{found.gpus_mean:.1f}"),
        ("GPUs with a replica for each tenant", found.gpus_dedicated),
        ("requests a second of one replica", f"{found.capacity:g} ({found.capacity_source})"),
        ("requests", found.requests),
        ("share that waited for its adapter", f"{wire['cold_load_share']:.3%}"),
        ("share that could not be answered", f"{wire['unserved_share']:.3%}"),
        ("adapter moves an hour", f"{found.moves_per_hour:.1f}"),
        ("wait before the first step, p50 and p99", f"{found.wait[0]:.3f} s, {found.wait[1]:.3f} s"),
    ]
    parts = [
        f"<h1>Plan of pool {escape(found.pool)}</h1>",
        _table(("", ""), facts),
        draw(panels(found)),
        "<h2>Assumed</h2><ul>",
        *(f"<li>{escape(each)}</li>" for each in found.assumptions),
        "</ul>",
        *_section("Adapters that are cold", ("adapter", "tier", "requests", "cold"), wire["cold"]),
        *_section("Adapters that are not Ready", ("adapter", "reason"), found.refused),
        *_section("Tenants on the way to replicas of their own", STAGES, found.promotions),
    ]
    head = f"<meta charset='utf-8'><title>Plan of {escape(found.pool)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'>{head}{''.join(parts)}</html>\n"


def panels(found: Forecast) -> list[Panel]:
    """GPUs, requests, colds and moves over time."""
    samples = found.samples
    times = [each.at for each in samples]
    names = sorted({name for each in samples for name in each.sets})
    dedicated = {"one replica a tenant": [float(found.gpus_dedicated)] * len(samples)}
    return [
        Panel(
            "GPUs",
            "GPUs",
            times,
            dedicated,
            areas={
                name: [float(each.sets.get(name, 0) * found.gpus_per_replica) for each in samples] for name in names
            },
        ),
        Panel("Requests", "per second", times, {"requests": _rates(samples, "requests")}),
        Panel(
            "Requests that waited for their adapter or got no answer",
            "%",
            times,
            {"waited": _shares(samples, "cold"), "no answer": _shares(samples, "unserved")},
        ),
        Panel("Loads of adapters", "per interval", times, {"loads": [float(each.loads) for each in samples]}),
    ]


def _rates(samples: Sequence[Sample], name: str) -> list[float]:
    before = [0.0, *(each.at for each in samples[:-1])]
    return [getattr(each, name) / max(each.at - start, 1e-9) for each, start in zip(samples, before, strict=True)]


def _shares(samples: Sequence[Sample], name: str) -> list[float]:
    return [100.0 * getattr(each, name) / each.requests if each.requests else 0.0 for each in samples]


def _section(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    more = f" ({SHOWN} of {len(rows)})" if len(rows) > SHOWN else ""
    shown = [tuple(each.get(column, "") for column in columns) for each in rows[:SHOWN]]
    return [f"<h2>{escape(title)}{more}</h2>", _table(columns, shown)]


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    body = "".join(f"<tr>{''.join(_cell(each) for each in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    number = " class='n'" if isinstance(value, int | float) else ""
    return f"<td{number}>{escape(str(value))}</td>"
