"""Dashboards and alerts ask for what our programs export, by the labels that it has."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import Metric

from dashboards.generate import rendered
from e2e.cluster.paths import REPOSITORY
from lorafleet_contracts.conditions import Reason
from lorafleet_engine.server.tls import TlsFolder
from lorafleet_operator.core.figures import UNSEEN
from tests.support.authority import make_authority
from tests.support.queries import CHART, Shipped, alerts, panels
from tests.support.registries import drive_engine, drive_gateway, drive_operator

SHIPPED = [*panels(), *alerts()]
OF_TARGETS = {"pool", "replica", "pod", "job", "instance", "namespace"}
"""Labels that scraping adds."""


def families() -> list[Metric]:
    """Every metric of the three programs."""
    registries = (drive_engine(1), drive_gateway(1), drive_operator(1).registry)
    with tempfile.TemporaryDirectory() as folder:
        make_authority(Path(folder) / "authority").write_pair(Path(folder) / "tls", "engine")
        tls = list(TlsFolder(Path(folder) / "tls").collect())
    return [*(family for registry in registries for family in registry.collect()), *tls]


def exported() -> dict[str, set[str]]:
    """Every series' name and the labels that it has."""
    found: dict[str, set[str]] = {}
    for family in families():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


EXPORTED = exported()


def selectors(node: Any) -> Iterator[Any]:
    """All vector selectors of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None:
            yield from selectors(child)
    for child in getattr(node, "args", None) or ():
        yield from selectors(child)


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.where)
def test_every_query_asks_for_what_is_exported(shipped: Shipped) -> None:
    found = list(selectors(promql_parser.parse(shipped.expression)))
    assert found
    for selector in found:
        assert selector.name in EXPORTED, f"nobody exports {selector.name}"
        for matcher in selector.matchers.matchers:
            assert matcher.name in EXPORTED[selector.name] | OF_TARGETS, f"{selector.name} has no label {matcher.name}"


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.where)
def test_every_grouping_is_by_labels_that_there_are(shipped: Shipped) -> None:
    known = OF_TARGETS | {
        label for each in selectors(promql_parser.parse(shipped.expression)) for label in EXPORTED[each.name]
    }
    for words in re.findall(r"\b(?:by|on) \(([^)]*)\)", shipped.expression):
        assert {word.strip() for word in words.split(",")} <= known


def test_what_no_dashboard_and_no_alert_shows_is_chosen() -> None:
    shown = {each.name for shipped in SHIPPED for each in selectors(promql_parser.parse(shipped.expression))}
    hidden = {
        each.name for each in families() if not shown & {f"{each.name}{end}" for end in ("", "_total", "_bucket")}
    }
    assert hidden == {
        "lorafleet_operator_applies",
        "lorafleet_packing_waste_bytes",
        "lorafleet_pages_free",
        "lorafleet_step_seconds",
        "vllm:lora_requests_info",
    }


def test_the_dashboards_are_those_of_the_generator() -> None:
    committed = {each.name: each.read_text() for each in (CHART / "dashboards").glob("*.json")}
    assert committed == rendered(), "run make dashboards"


def test_variables_are_read_from_what_is_exported() -> None:
    for path in (CHART / "dashboards").glob("*.json"):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\S+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
                assert label in EXPORTED[metric] | OF_TARGETS


def test_reasons_that_alerts_leave_out_exist() -> None:
    known = {UNSEEN, *Reason}
    for shipped in alerts():
        for words in re.findall(r'reason!?~"([^"]*)"', shipped.expression):
            assert set(words.split("|")) <= known


def test_every_alert_has_its_section_in_the_runbooks() -> None:
    text = (REPOSITORY / "docs" / "runbooks.md").read_text()
    sections = set(re.findall(r"^## (\w+)$", text, re.MULTILINE))
    names = {shipped.where for shipped in alerts()}
    assert names == {each for each in sections if each.startswith("Lora")}


def test_every_alert_is_tested_firing_and_silent() -> None:
    """By promtool, in test_alerts.py."""
    cases = yaml.safe_load((REPOSITORY / "tests" / "monitoring" / "alerts_test.yaml").read_text())["tests"]
    seen = [(each["alertname"], bool(each.get("exp_alerts"))) for case in cases for each in case["alert_rule_test"]]
    for shipped in alerts():
        assert (shipped.where, True) in seen, f"{shipped.where} is never seen firing"
