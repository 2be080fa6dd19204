"""`lorafleet bench engine`: every part once with a tiny model on the CPU, its records, the rules for honest figures."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.bench import command
from lorafleet_engine.bench.floor import FloorModel
from lorafleet_engine.bench.parts.stall import percentile_99
from lorafleet_engine.bench.workload import QWEN25_7B
from lorafleet_engine.model.config import parse_config

pytestmark = pytest.mark.heavy

CAPS = {"tokens", "sequences", "distinct_adapters", "rank_sum"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit status, last line, and the records in the file afterwards."""

    status: int
    summary: dict[str, Any]
    records: list[dict[str, Any]]


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a part with its files under the test's own folder."""

    def part(name: str, *more: str) -> Outcome:
        file = tmp_path / "records.jsonl"
        where = ["--records", str(file), "--sources", str(tmp_path / "memory"), "--disk", str(tmp_path / "disk")]
        small = ["--tiny", "--device", "cpu", "--repeats", "1", "--commit", "abc"]
        status = command.main(["engine", "--part", name, *where, *small, *more])
        lines = file.read_text().splitlines() if file.exists() else []
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        return Outcome(status, last, [json.loads(line)["record"] for line in lines])

    return part


def test_decode_holds_base_and_adapters_beside_their_own_base(run: Run) -> None:
    outcome = run("decode")
    assert outcome.status == 0, outcome.summary
    shapes = [(r["batch"], r["adapters"], r["rank"], r["rank_sum"]) for r in outcome.records]
    assert shapes == [
        (1, 0, "none", 0),
        (1, 1, "16", 16),
        (4, 0, "none", 0),
        (4, 1, "16", 16),
        (4, 4, "16", 64),
        (4, 4, "64", 256),
        (4, 4, "mixed", 120),
    ]
    assert [r["context"] for r in outcome.records] == [10] * 7
    assert all(r["case"] == "decode" and r["floor_ms"] < r["floor_with_kv_ms"] for r in outcome.records)
    assert all(r["caps"].keys() == CAPS for r in outcome.records)
    own = {r["own_base_ms"] for r in outcome.records if r["batch"] == 4}
    assert own == {outcome.records[2]["ms"]}


def test_prefill_gives_the_ratio_to_the_own_base(run: Run) -> None:
    (record,) = run("prefill").records
    assert record["case"] == "prefill"
    assert record["ratio"] == pytest.approx(record["ms"] / record["own_base_ms"], abs=1e-4)
    assert record["adapters"] == 4


def test_serve_runs_three_popularities(run: Run) -> None:
    records = run("serve").records
    assert [(r["zipf"], r["state"]) for r in records] == [(None, "warm"), (1.0, "warm"), (0.1, "warm")]
    assert [r["distinct"] for r in records] == [0, 6, 7]
    assert all(r["tok_s"] == pytest.approx(8 * 4 / r["wall_s"], rel=0.02) for r in records)


def test_sweep_states_the_cap_and_the_kv_tokens_it_leaves(run: Run) -> None:
    narrow, wide = run("sweep").records
    assert (
        (narrow["cap"], wide["cap"])
        == (2, 8)
        == (
            narrow["caps"]["distinct_adapters"],
            wide["caps"]["distinct_adapters"],
        )
    )
    assert narrow["kv_tokens"] > wide["kv_tokens"]


def test_stalls_are_ratios_of_step_times(run: Run) -> None:
    (loads,) = run("stall").records
    assert (loads["case"], loads["loads"], loads["disturbed_ms"]["steps"]) == ("load-stall", 6, 6)
    assert loads["p99_ratio"] > 0


def test_long_windows(run: Run) -> None:
    decode, chunked = run("long").records
    assert (decode["case"], decode["batch"], len(decode["repeats_ms"])) == ("decode", 2, 1)
    assert 40 < decode["context"] < 50
    assert chunked["case"] == "chunked-prefill"
    assert chunked["disturbed_ms"]["steps"] >= 8  # 200 tokens at 24 a step
    assert chunked["itl_p99_ratio"] > 0


def test_the_server_starts_and_streams(run: Run) -> None:
    outcome = run("http")
    assert outcome.status == 0, outcome.summary
    start, http = outcome.records
    assert (start["case"], start["compiled_after_ready"]) == ("start", 0)
    assert start["ready_s"] > 1
    assert (http["case"], http["streams"], http["requests"]) == ("http", 4, 8)
    assert http["ratio"] == pytest.approx(http["tok_s"] / http["in_process_tok_s"], rel=0.01)


def test_the_deployed_engine_in_an_open_loop(run: Run) -> None:
    outcome = run("open")
    assert outcome.status == 0, outcome.summary
    (record,) = outcome.records
    for zipf in ("zipf 1.0", "zipf 0.1"):
        found = record[zipf]["open"]
        assert found["errors"] == {}
        assert sum(each["requests"] for each in found["by_decile"].values()) == found["requests"] == found["offered"]
        assert record[zipf]["saturation"]["requests_per_s"] > 0
    neighbour = record["neighbour"]
    alone, beside = (neighbour[arm]["by_tenant"]["polite-1"] for arm in ("alone", "beside heavy"))
    assert alone["requests"] == beside["requests"]
    assert neighbour["beside heavy"]["by_tenant"]["heavy"]["requests"] > 10 * alone["requests"]
    assert neighbour["p99_over_alone"] == pytest.approx(beside["ttft_ms"]["p99"] / alone["ttft_ms"]["p99"], abs=0.01)


def test_idle_residents(run: Run) -> None:
    (record,) = run("residents").records
    assert (record["case"], record["resident"], record["active"]) == ("idle-residents", 24, 1)
    assert record["ratio"] == pytest.approx(record["ms"] / record["alone_ms"], rel=0.01)


def test_cold_has_three_arms(run: Run) -> None:
    assert run("cold").status == 0
    outcome = run("disk", "--part", "source")
    assert outcome.status == 0, outcome.summary
    assert [(r["case"], r["state"]) for r in outcome.records] == [
        ("serve", "cold-host"),
        ("serve", "cold-disk"),
        ("serve", "cold-source"),
    ]
    assert all(r["loaded"] == 6 and r["loaded_bytes"] == 176 * 8192 for r in outcome.records)
    assert outcome.records[1]["disk_bytes_s"] > 0


def test_parts_of_one_run_measure_warm_serving_once(run: Run) -> None:
    outcome = run("serve", "--part", "cold")
    assert outcome.status == 0, outcome.summary
    assert outcome.records[3]["warm_wall_s"] == outcome.records[1]["wall_s"]


def test_a_part_goes_on_where_it_stopped(run: Run) -> None:
    cut = run("prefill", "--budget", "0")
    assert (cut.status, cut.summary["left"], cut.records) == (1, ["prefill B=4"], [])
    assert run("prefill").summary["done"] == ["prefill B=4"]
    again = run("prefill")
    assert (again.status, again.summary["done"], again.summary["skipped"]) == (0, [], ["prefill B=4"])
    assert run("prefill", "--commit", "def").summary["done"] == ["prefill B=4"]


def test_equal_adapters_give_no_figure(run: Run, tmp_path: Path) -> None:
    assert run("prefill").status == 0
    for twin in (4, 8, 12):  # ranks go round in fours: these and number 0 are of rank 8
        shutil.copyfile(blob(tmp_path, 0), blob(tmp_path, twin))
    outcome = run("residents")
    assert outcome.status == 1
    assert "SharedBytesError: 24 adapters have only 21 different contents" in outcome.summary["errors"][0]
    assert len(outcome.records) == 1


def test_a_failed_case_leaves_no_engine_behind(run: Run, tmp_path: Path) -> None:
    """The cases after it must not run beside what it left there."""
    assert run("serve").status == 0
    (tmp_path / "records.jsonl").unlink()
    blob(tmp_path, 8).write_bytes(b"short")  # the fourth adapter that Zipf 1.0 loads; Zipf 0.1 does without it
    outcome = run("serve")
    assert outcome.status == 1
    assert "bad_blob" in outcome.summary["errors"][0]
    assert outcome.summary["done"] == ["serve zipf=None", "serve zipf=0.1"]


def blob(root: Path, number: int) -> Path:
    folder = root / "memory" / "tiny-blobs"
    return folder / f"{number:04d}-r8-float32.blob"


def test_the_floor_is_the_design_s() -> None:
    shape: ModelShape = parse_config(QWEN25_7B, {}).shape
    floor = FloorModel(shape, 2, 4.3e12)
    assert floor.rank_unit_bytes == 5_046_272
    assert floor.of(0, 0).fields()["floor_ms"] == pytest.approx(3.29, abs=0.01)
    assert floor.of(1000, 0).adapters_ms == pytest.approx(1.173, abs=0.001)
    assert floor.of(0, 64 * 4096).fields()["floor_with_kv_ms"] == pytest.approx(6.8, abs=0.05)


def test_percentile() -> None:
    assert percentile_99([float(value) for value in range(1, 201)]) == 198
    assert percentile_99([5.0]) == 5


def test_needs_nothing_that_the_gpu_machine_lacks() -> None:
    """Torch, triton, safetensors and numpy; and no torch before a part runs."""
    parts = ", ".join(f"lorafleet_engine.bench.parts.{part}" for part in command.PARTS)
    first = "import sys, lorafleet_engine.bench.command; assert 'torch' not in sys.modules"
    code = f"{first}; import {parts}; print(*sys.modules)"
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert not {"pydantic", "starlette", "httpx", "orjson", "regex", "jinja2"} & set(loaded.stdout.split())
