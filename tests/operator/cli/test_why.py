import json

import pytest

from lorafleet_operator.cli.why import register
from tests.support.commands import condition, custom, run_command
from tests.support.fake_api import FakeApi

POOL = {"conditions": [condition("Ready", "True", "Ready")], "budget": {"weights": 15_220_000_000, "adapters": 7}}
ADAPTER = {
    "conditions": [
        condition("Ready", "False", "DigestMismatch", "the files are not those of spec.source.digest"),
        condition("Available", "True", "OldVersionServes", "sha256:0a serves"),
    ],
    "bytes": 4_623_360,
    "placements": [{"replica": "smol-shared-0", "digest": "sha256:0a", "reason": "LeastLoaded"}],
    "fieldOfANewerRelease": {"forecast": {"itl": "31 ms"}},
}


@pytest.fixture
def fleet(fake_api: FakeApi) -> FakeApi:
    fake_api.add("lorapools", custom("LoraPool", "smol", status=POOL))
    fake_api.add("loraadapters", custom("LoraAdapter", "pirate", status=ADAPTER))
    promoted = {"stage": "Dedicated", "since": "2026-11-30T10:00:00Z", "set": "merged-0badcafe"}
    ready = [condition("Ready", "True", "Ready")]
    fake_api.add("tenants", custom("Tenant", "acme", status={"conditions": ready, "promotion": promoted}))
    for number, uid in enumerate(("uid-demo-pirate", "uid-demo-other")):
        event = {
            "metadata": {"name": f"e{number}", "namespace": "demo"},
            "involvedObject": {"uid": uid},
            "type": "Warning",
            "reason": "VerifiedWithWarnings",
            "message": f"about {uid}",
            "lastTimestamp": "2026-11-30T10:00:00Z",
        }
        fake_api.add("events", event, group="/api/v1")
    return fake_api


def test_an_adapter_s_verdict_numbers_conditions_and_events(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "why", "adapter", "pirate") == 0
    printed = capsys.readouterr().out
    verdict = "not Ready: DigestMismatch: the files are not those of spec.source.digest; meanwhile sha256:0a serves"
    assert f"LoraAdapter demo/pirate: {verdict}" in printed
    assert "LoraPool demo/smol: Ready" in printed
    assert "4623360 (4.6 MB)" in printed
    assert "placements[0].reason" in printed
    assert "fieldOfANewerRelease.forecast.itl" in printed
    assert "about uid-demo-pirate" in printed
    assert "about uid-demo-other" not in printed


def test_a_tenant_s_promotion_in_json(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "why", "tenant", "acme", "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "Ready"
    assert told["decision"]["promotion"]["stage"] == "Dedicated"
    assert told["pool"] == {"name": "demo/smol", "verdict": "Ready"}


def test_a_pool_s_budget(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "why", "pool", "smol") == 0
    assert "15220000000 (15,220.0 MB)" in capsys.readouterr().out


def test_nobody_has_looked_and_the_pool_is_missing(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    lost = custom("LoraAdapter", "lost")
    lost["spec"]["poolRef"] = {"name": "nowhere"}
    fleet.add("loraadapters", lost)
    assert run_command(register, "why", "adapter", "lost") == 0
    printed = capsys.readouterr().out
    assert "no verdict yet: no operator has looked at it" in printed
    assert "LoraPool demo/nowhere: there is no such pool" in printed


def test_a_verdict_on_an_older_spec_is_marked(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    stale = custom(
        "LoraAdapter", "stale", status={"conditions": [condition("Ready", "True", "Ready") | {"observedGeneration": 1}]}
    )
    stale["metadata"]["generation"] = 2
    fleet.add("loraadapters", stale)
    assert run_command(register, "why", "adapter", "stale") == 0
    assert "Ready (of an older spec" in capsys.readouterr().out


def test_an_absent_object_is_an_error(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "why", "adapter", "absent", "-n", "team") == 1
    assert "there is no LoraAdapter team/absent (-n chooses another namespace)" in capsys.readouterr().err
