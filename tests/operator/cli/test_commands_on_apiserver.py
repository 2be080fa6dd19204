"""Commands that read, on a real API server with our CRDs: real lists, selectors and statuses."""

import asyncio
import json
from uuid import uuid4

import pytest

from e2e.cluster.apiserver import ApiServer
from lorafleet_kube.access import load_access
from lorafleet_kube.api import connect
from lorafleet_kube.paths import NAMESPACES
from lorafleet_operator.cli import status, why
from lorafleet_operator.shell.kinds import EVENTS, LORA_ADAPTERS, LORA_POOLS
from tests.support.commands import condition, custom, run_command
from tests.support.crds import install_crds

pytestmark = pytest.mark.apiserver


@pytest.fixture
def namespace(apiserver: ApiServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A namespace with a pool, an adapter that has a verdict, and an event about it."""
    name = f"cli-{uuid4().hex[:8]}"

    async def create() -> None:
        async with connect(await load_access(str(apiserver.kubeconfig))) as api:
            await install_crds(api)
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await api.apply(NAMESPACES.path(name=name), body, manager="tests")
            pool = _plain("LoraPool", "smol", name)
            pool["spec"] = {"baseModel": {"name": "b", "source": {"uri": "http://assets/b"}}}
            await api.apply(LORA_POOLS.path(name, "smol"), pool, manager="tests")
            adapter = _plain("LoraAdapter", "pirate", name)
            adapter["spec"] = {"poolRef": {"name": "smol"}, "source": {"uri": "http://assets/pirate"}}
            made = await api.apply(LORA_ADAPTERS.path(name, "pirate"), adapter, manager="tests")
            verdict = condition("Ready", "False", "SourceUnreachable", "404 of http://assets/pirate")
            told = _plain("LoraAdapter", "pirate", name) | {"status": {"conditions": [verdict], "rank": 8}}
            await api.apply(LORA_ADAPTERS.path(name, "pirate", "status"), told, manager="operator")
            about = {"kind": "LoraAdapter", "namespace": name, "name": "pirate", "uid": made["metadata"]["uid"]}
            event = {
                "metadata": {"name": "e1", "namespace": name},
                "involvedObject": about,
                "reason": "Tried",
                "message": "tried three times",
                "type": "Warning",
                "lastTimestamp": "2026-11-30T10:00:00Z",
            }
            await api.request("POST", EVENTS.path(name), body=event)

    asyncio.run(create())
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig))
    return name


def _plain(kind: str, name: str, namespace: str) -> dict[str, object]:
    made = custom(kind, name, namespace)
    return {key: made[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": name, "namespace": namespace}}


def test_status_and_why(namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(status.register, "status", "-n", namespace, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["pools"][0]["adapters"] == {"all": 1, "ready": 0}
    reasons = {each["name"]: each["reason"] for each in told["not_ready"]}
    assert reasons == {f"{namespace}/smol": "NoVerdict", f"{namespace}/pirate": "SourceUnreachable"}
    assert run_command(why.register, "why", "adapter", "pirate", "-n", namespace, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["decision"]["rank"] == 8
    assert [each["message"] for each in told["events"]] == ["tried three times"]
    assert told["pool"]["verdict"].startswith("no verdict yet")
    assert run_command(status.register, "status", "-A") == 0
    assert f"{namespace}/pirate" in capsys.readouterr().out
