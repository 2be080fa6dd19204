"""The parts `merged` and `fp8` with a tiny model on the CPU: their records, and that the base is back afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest

from lorafleet_engine.bench import command

pytestmark = pytest.mark.heavy


def run(tmp_path: Path, part: str) -> list[dict[str, Any]]:
    file = tmp_path / "records.jsonl"
    where = ["--records", str(file), "--sources", str(tmp_path / "memory"), "--disk", str(tmp_path / "disk")]
    small = ["--tiny", "--device", "cpu", "--repeats", "1", "--commit", "abc"]
    assert command.main(["engine", "--part", part, *where, *small]) == 0
    return [json.loads(line)["record"] for line in file.read_text().splitlines()]


def test_merged_is_held_against_its_own_base(tmp_path: Path) -> None:
    records = run(tmp_path, "merged")
    assert [(record["case"], record["batch"]) for record in records] == [("merged", 1), ("merged", 4)]
    for record in records:
        assert record["ratio"] == pytest.approx(record["ms"] / record["own_base_ms"], abs=1e-3)
        assert record["parity_rel_l2"] <= max(1.5 * record["unmerged_rel_l2"], 1e-5)


def test_a_rounded_base_is_held_against_the_unrounded(tmp_path: Path) -> None:
    *steps, logits = run(tmp_path, "fp8")
    assert [(record["case"], record["batch"]) for record in steps] == [("fp8", 1), ("fp8", 4)]
    assert all(record["ratio"] == pytest.approx(record["ms"] / record["own_base_ms"], abs=1e-3) for record in steps)
    assert (logits["case"], logits["positions"]) == ("fp8-logits", 160)
    assert 0.005 < logits["rel_l2"] < 0.5
