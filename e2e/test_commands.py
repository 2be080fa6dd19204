"""`lorafleet status`, `why` and `top` on the real cluster: statuses as they are, engines through port forwarding."""

import json
import sys
from typing import Any

from e2e.client import Client
from e2e.cluster.commands import run
from e2e.fleet import DEMO, Fleet
from e2e.traffic import tapping


def ask(fleet: Fleet, *words: str) -> dict[str, Any]:
    """One command's JSON."""
    command = [sys.executable, "-m", "lorafleet_contracts.cli", *words, "-n", DEMO, "-o", "json"]
    decoded: dict[str, Any] = json.loads(run(command, env=fleet.environment()))
    return decoded


def test_status_counts_what_is_ready(fleet: Fleet, acme: Client) -> None:
    told = ask(fleet, "status")
    (pool,) = told["pools"]
    assert pool["pool"] == f"{DEMO}/smol"
    assert pool["ready"] == "True"
    assert pool["adapters"]["ready"] == pool["adapters"]["all"] >= 3
    assert told["not_ready"] == []


def test_why_tells_where_an_adapter_is_and_how_large(fleet: Fleet, acme: Client) -> None:
    told = ask(fleet, "why", "adapter", "pirate")
    assert told["verdict"] == "Ready"
    assert told["pool"]["verdict"] == "Ready"
    assert told["decision"]["bytes"] > 0
    assert told["decision"]["placements"]
    assert all(each["reason"] for each in told["decision"]["placements"])
    assert ask(fleet, "why", "tenant", "acme")["decision"]["adapters"] == 2


def test_top_sees_requests_as_they_are_answered(fleet: Fleet, acme: Client) -> None:
    with tapping(acme, "pirate"):
        told = ask(fleet, "top", "smol", "--interval", "10")
    assert {each["state"] for each in told["replicas"]} == {"ready"}
    rates = {each["adapter"]: each["requests_per_s"] for each in told["adapters"]}
    assert rates[f"{DEMO}/pirate"] > 0
    assert told["tenants"][0]["tenant"] == f"{DEMO}/acme"
