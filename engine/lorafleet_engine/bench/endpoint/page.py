"""The HTML page of a run: one file, no script, nothing from elsewhere. Used by session.py."""

import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

TEMPLATE = "page.html.j2"
OPEN = ("cold", "warm")


def render(document: dict[str, Any]) -> str:
    """The whole page; sections without figures are left out."""
    environment = Environment(
        loader=PackageLoader("lorafleet_engine.bench.endpoint", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    phases = document.get("phases", [])
    named = [phase for phase in phases if phase["arm"] == "adapters" and phase["state"] in OPEN]
    return environment.get_template(TEMPLATE).render(
        document=document,
        phases=phases,
        named=named,
        tiers=[phase for phase in phases if phase["state"] == "tier"],
        charts=[_chart(phase) for phase in named],
        settings=json.dumps(document["settings"], indent=1),
    )


def _chart(phase: dict[str, Any]) -> dict[str, Any]:
    """p99 and p50 of the time to the first token by decile of popularity, as bars from zero."""
    rows = [
        {"name": f"decile {name}", "p99": found["ttft_ms"]["p99"], "p50": found["ttft_ms"]["p50"]}
        for name, found in phase["by_decile"].items()
        if found["ttft_ms"]["p99"] is not None
    ]
    return {"title": phase["name"], "rows": rows, "most": max((row["p99"] for row in rows), default=0) or 1}
