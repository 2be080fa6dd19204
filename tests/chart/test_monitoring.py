"""What the chart makes for Prometheus Operator and Grafana, and that it makes nothing unless asked."""

import json
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CHART, Render

pytestmark = pytest.mark.apiserver
POOL = ("monitoring.podMonitors.pools[0].namespace=demo", "monitoring.podMonitors.pools[0].name=smol")


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def test_nothing_unless_asked(render: Render) -> None:
    assert not {each["kind"] for each in render()} & {"PrometheusRule", "PodMonitor", "ConfigMap"}


def test_dashboards_alerts_and_monitors(render: Render) -> None:
    documents = render(
        "monitoring.dashboards.enabled=true",
        "monitoring.alerts.enabled=true",
        "monitoring.alerts.labels.release=prometheus",
        "monitoring.podMonitors.enabled=true",
        *POOL,
    )
    pages = of_kind(documents, "ConfigMap")
    assert len(pages) == 4
    for page in pages.values():
        ((name, text),) = page["data"].items()
        assert page["metadata"]["labels"]["grafana_dashboard"] == "1"
        source = CHART / "dashboards" / name.removeprefix("lorafleet-")
        assert json.loads(text) == json.loads(source.read_text())
    (rules,) = of_kind(documents, "PrometheusRule").values()
    assert rules["spec"] == yaml.safe_load((CHART / "alerts" / "rules.yaml").read_text())
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    monitors = of_kind(documents, "PodMonitor")
    ports = {
        port["name"]
        for each in of_kind(documents, "Deployment").values()
        for container in each["spec"]["template"]["spec"]["containers"]
        for port in container.get("ports", [])
    }
    for component in ("operator", "gateway"):
        (endpoint,) = monitors[f"lorafleet-{component}"]["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in ports
    engines = monitors["lorafleet-smol"]
    (endpoint,) = engines["spec"]["podMetricsEndpoints"]
    assert engines["metadata"]["namespace"] == "demo"
    assert endpoint["authorization"]["credentials"] == {"name": "smol-tokens", "key": "scrape"}
    assert {each["targetLabel"] for each in endpoint["relabelings"]} == {"pool", "replica"}
