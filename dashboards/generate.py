"""Writes the Grafana dashboards of the chart: `make dashboards`. One module a page; panels.py has what they share."""

import json
from pathlib import Path
from typing import Any

from dashboards.fleet import fleet
from dashboards.panels import Dashboard, Panel
from dashboards.pool import pool
from dashboards.subjects import adapter, tenant

TARGET = Path(__file__).resolve().parent.parent / "charts" / "lorafleet" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, ACROSS = 8, 8, 3


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
