"""`lorafleet bench serve` against real engines: evictions through the admin port show as tiers, caps are swept."""

import json
from pathlib import Path
from typing import Any

import pytest

from lorafleet_contracts.admin import PortName
from lorafleet_engine.bench.command import main
from tests.conformance.client import Client, LoadedAdapter, until
from tests.support.engine_process import SMALL, Engine
from tests.support.tiny_model import AdapterRecipe, make_adapter, make_model

LOAD = ["--requests", "24", "--prompt", "12", "--answer", "3", "--saturation-requests", "12", "--streams", "4"]


@pytest.fixture
def served(client: Client, sources: list[str]) -> Any:
    """Four versions of their own, gone afterwards."""
    loaded = [client.bring(f"bench-{number}", uri) for number, uri in enumerate(sources[:4])]
    yield loaded
    for each in loaded:
        client.delete(each.uid, each.digest)


def phase(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in document["phases"] if each["name"] == name]
    return found


def ports(engine: Engine, folder: Path) -> list[str]:
    """The engine's other two ports as arguments."""
    arguments = ["--url", engine.serving, "--key", engine.tokens[PortName.SERVING]]
    for port, url in ((PortName.STATE, engine.state), (PortName.ADMIN, engine.admin)):
        (folder / port.value).write_text(engine.tokens[port])
        arguments += [f"--{port.value}-url", url, f"--{port.value}-token-file", str(folder / port.value)]
    return arguments


def test_tiers_are_measured_through_the_admin_port(
    engine: Engine, served: list[LoadedAdapter], client: Client, tmp_path: Path
) -> None:
    models = tmp_path / "models.json"
    adapters = [{"id": each.uid, "version": each.key, "uri": each.uri} for each in served]
    base = {"id": "tiny", "headers": {"x-lorafleet-model": "base"}}
    models.write_text(json.dumps({"base": base, "adapters": adapters}))
    out = tmp_path / "figures.json"
    asked = ["--models", str(models), "--rate", "6", "--zipf", "1", "--zipf", "0", "--tier-samples", "3", "--quiet"]
    status = main(["serve", *ports(engine, tmp_path), *LOAD, *asked, "--out", str(out)])
    document = json.loads(out.read_text())

    assert status == 0, document["warnings"]
    assert not any(each["errors"] for each in document["phases"]), document["warnings"]
    cold, warm = phase(document, "zipf 0, cold"), phase(document, "zipf 0, warm")
    assert "disk" in cold["by_start"]
    assert set(warm["by_start"]) == {"gpu"}
    assert set(warm["by_rank"]) == {"r008", "r016"}, "ranks come from the state port"
    for tier in ("disk", "host", "gpu"):
        found = phase(document, f"one by one from {tier}")
        assert set(found["by_start"]) == {tier}
        assert found["ttft_ms"]["count"] == 3
    assert warm["engine"]["samples"] > 0
    assert warm["engine"]["waiting_max"] is not None
    assert {each.key for each in served} <= client.resident_keys()


def test_adapters_of_an_engine_are_found_by_its_state_port(
    engine: Engine, served: list[LoadedAdapter], tmp_path: Path
) -> None:
    out = tmp_path / "figures.json"
    arguments = ports(engine, tmp_path)[:-4]  # no admin port
    status = main(["serve", *arguments, *LOAD, "--rate", "8", "--out", str(out), "--quiet"])
    document = json.loads(out.read_text())

    assert status == 0, document["warnings"]
    assert {f"team/{each.uid}" for each in served} <= {each["id"] for each in document["catalogue"]["adapters"]}
    assert set(phase(document, "zipf 1, cold")["by_start"]) == {"gpu"}


def test_eviction_needs_to_know_where_adapters_come_from(
    engine: Engine, served: list[LoadedAdapter], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["serve", *ports(engine, tmp_path), *LOAD, "--out", str(tmp_path / "x.json"), "--quiet"])

    assert status == 1
    assert "cannot be evicted" in capsys.readouterr().err


def test_a_wrong_token_of_a_port(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ports(engine, tmp_path)
    (tmp_path / "state").write_text("wrong")
    status = main(["serve", *arguments, *LOAD, "--out", str(tmp_path / "x.json"), "--quiet"])

    assert status == 1
    assert "check --state-token-file" in capsys.readouterr().err


def test_what_is_on_the_disk_tier_leaves_no_copy_in_memory(
    local: Engine, client: Client, served: list[LoadedAdapter]
) -> None:
    version = served[0]
    assert local.folder is not None
    blob = local.folder / "host" / f"{version.digest.removeprefix('sha256:')}.blob"
    client.delete(version.uid, version.digest)
    assert client.put(version.uid, version.digest, version.uri, "host").is_success
    assert blob.exists()

    client.delete(version.uid, version.digest)
    assert client.put(version.uid, version.digest, version.uri, "disk").is_success

    until(blob.exists, lambda there: not there, 10)
    assert client.complete(version.key)["choices"]
    assert blob.exists(), "it came through memory, and stays there"


@pytest.mark.timeout(600)
def test_engines_of_its_own_sweep_the_cap(tmp_path: Path, local: Engine) -> None:
    model = make_model(tmp_path / "models" / "tiny")
    for number in range(3):
        make_adapter(tmp_path / "adapters" / f"tenant-{number}", AdapterRecipe(30 + number, rank=4 << number))
    out = tmp_path / "figures.json"
    own = ["--own", str(model), "--own-adapters", str(tmp_path / "adapters"), "--device", "cpu"]
    asked = ["--memory-bytes", str(SMALL), "--caps", "1,3", "--tier-samples", "2", "--quiet", "--out", str(out)]
    status = main(["serve", *own, *LOAD, *asked])
    document = json.loads(out.read_text())

    assert status == 0, document["warnings"]
    assert [each["cap"] for each in document["sweep"]] == [1, 3]
    for each in document["sweep"]:
        assert each["kv_tokens"] > 0
        assert each["zipf 1"]["requests_per_s"] > 0
        assert each["zipf 0.1"]["errors"] == {}
    assert set(phase(document, "zipf 1, warm")["by_rank"]) == {"r008", "r016"}
    assert "Cap on distinct adapters" in out.with_suffix(".html").read_text()
