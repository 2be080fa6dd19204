"""Every PromQL expression that we ship: of the dashboards' panels and variables, and of the alerts."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from e2e.cluster.paths import REPOSITORY

CHART = REPOSITORY / "charts" / "lorafleet"
WINDOW = "5m"
QUICKSTART = {"pool": "demo/smol", "adapter": "demo/pirate", "tenant": "demo/acme"}
"""What stands for Grafana's variables."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """One expression and where it is from."""

    where: str
    expression: str


def panels(variables: Mapping[str, str] = QUICKSTART) -> Iterator[Shipped]:
    """The dashboards' queries, their variables filled in."""
    for path in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield Shipped(f"{path.stem}: {panel['title']} {target['refId']}", fill(target["expr"], variables))


def alerts() -> Iterator[Shipped]:
    """The alerts' conditions."""
    for group in yaml.safe_load((CHART / "alerts" / "rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield Shipped(rule["alert"], rule["expr"])


def fill(expression: str, variables: Mapping[str, str]) -> str:
    """Without Grafana's variables."""
    expression = expression.replace("$__rate_interval", WINDOW)
    return re.sub(r"\$(\w+)", lambda match: variables[match[1]], expression)
