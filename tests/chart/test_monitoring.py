"""What the chart makes for Prometheus Operator and Grafana, and that it makes nothing unless asked."""

import json
import re
from typing import Any

import pytest
import yaml

from lorafleet_contracts.names import ENGINE_CA_KEY, LABEL_TLS, engine_server_name, tls_secret
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
    assert {each["targetLabel"] for each in endpoint["relabelings"]} == {"__scheme__", "pool", "replica"}
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": tls_secret("smol"), "key": ENGINE_CA_KEY}},
        "serverName": engine_server_name("demo", "smol"),
    }
    assert "scheme" not in endpoint, "pods of earlier releases have no mark and speak plain HTTP"
    (by_mark,) = (each for each in endpoint["relabelings"] if each["targetLabel"] == "__scheme__")
    label = "__meta_kubernetes_pod_label_" + re.sub("[^a-z]", "_", LABEL_TLS)
    assert (by_mark["sourceLabels"], by_mark["regex"], by_mark["replacement"]) == ([label], "true", "https")
