import json

import pytest

from lorafleet_operator.cli.status import register
from tests.support.commands import condition, custom, run_command
from tests.support.fake_api import FakeApi

READY = {"conditions": [condition("Ready", "True", "Ready")]}
POOL = {
    "replicas": 3,
    "readyReplicas": 2,
    "sets": [{"name": "shared", "replicas": 2, "ready": 2}, {"name": "class-64", "replicas": 1, "ready": 0}],
    "conditions": [
        condition("Ready", "True", "Ready"),
        condition("Degraded", "True", "RedundancyLost", "2 of 3 replicas ready"),
    ],
}
STALLED = {"conditions": [condition("Ready", "False", "DoesNotFit", "needs [red]5[/red] bytes")]}


@pytest.fixture
def fleet(fake_api: FakeApi) -> FakeApi:
    fake_api.add("lorapools", custom("LoraPool", "smol", status=POOL))
    fake_api.add("loraadapters", custom("LoraAdapter", "pirate", status=READY))
    fake_api.add("loraadapters", custom("LoraAdapter", "huge", status=STALLED))
    fake_api.add("loraadapters", custom("LoraAdapter", "fresh", namespace="team"))
    fake_api.add("tenants", custom("Tenant", "acme", status=READY))
    return fake_api


def test_a_table_of_pools_and_of_what_is_not_ready(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "status") == 0
    printed = capsys.readouterr().out
    assert "demo/smol" in printed
    assert "shared 2/2, class-64 0/1" in printed
    assert "needs [red]5[/red] bytes" in printed  # what people wrote is no markup
    assert "RedundancyLost" in printed
    assert "team/fresh" not in printed


def test_json_and_all_namespaces(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "status", "-A", "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    (pool,) = told["pools"]
    assert pool["adapters"] == {"all": 3, "ready": 1}
    assert pool["tenants"] == {"all": 1, "ready": 1}
    assert {each["name"]: each["reason"] for each in told["not_ready"]} == {
        "demo/smol": "RedundancyLost",
        "demo/huge": "DoesNotFit",
        "team/fresh": "NoVerdict",
    }


def test_a_namespace_without_pools(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "status", "-n", "team") == 0
    assert "no LoraPool here; 0/1 adapters" in capsys.readouterr().out


def test_what_one_may_not_read_is_told(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.forbidden = ("/apis/lorafleet.io/v1alpha1/namespaces/demo/tenants",)
    assert run_command(register, "status") == 1
    assert "403 Forbidden: user may not read" in capsys.readouterr().err
