"""The files that Envoy reads."""

from pathlib import Path
from typing import Any

import orjson

from lorafleet_gateway.core.envoy_clusters import cluster_name, endpoints_file
from lorafleet_gateway.core.records import Replica
from lorafleet_gateway.settings import read_settings
from lorafleet_gateway.shell.envoy_files import EnvoyFiles, write_bootstrap

ONE, TWO = ("ns", "one"), ("ns", "two")
REPLICA = Replica("10.0.0.1:8000", "10.0.0.1:8001")


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(path.read_bytes())["resources"]
    return found


def test_clusters_follow_the_pools_and_stale_files_go(tmp_path: Path) -> None:
    (tmp_path / "eds-left.behind.json").write_text("{}")
    files = EnvoyFiles(tmp_path)
    files.write({ONE: (REPLICA,), TWO: ()})
    assert [each["name"] for each in read(tmp_path / "cds.json")] == [cluster_name(ONE), cluster_name(TWO)]
    assert {each.name for each in tmp_path.iterdir()} == {"cds.json", endpoints_file(ONE), endpoints_file(TWO)}
    files.write({TWO: (REPLICA,)})
    assert {each.name for each in tmp_path.iterdir()} == {"cds.json", endpoints_file(TWO)}
    assert len(read(tmp_path / endpoints_file(TWO))[0]["endpoints"][0]["lb_endpoints"]) == 1


def test_what_did_not_change_is_not_written(tmp_path: Path) -> None:
    files = EnvoyFiles(tmp_path)
    files.write({ONE: (REPLICA,), TWO: ()})
    before = {each.name: each.stat().st_ino for each in tmp_path.iterdir()}
    files.write({ONE: (REPLICA,), TWO: (REPLICA,)})
    after = {each.name: each.stat().st_ino for each in tmp_path.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {endpoints_file(TWO)}


def test_a_bootstrap_keeps_the_clusters_of_a_picker_that_ran_before(tmp_path: Path) -> None:
    settings = read_settings({"LORAFLEET_CONFIG_DIR": str(tmp_path / "new")})
    write_bootstrap(settings)
    assert read(tmp_path / "new/cds.json") == []
    EnvoyFiles(settings.config_dir).write({ONE: ()})
    path = write_bootstrap(settings)
    assert len(read(tmp_path / "new/cds.json")) == 1
    assert orjson.loads(path.read_bytes())["admin"]
