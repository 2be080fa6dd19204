"""`lorafleet bench merge`: one JSON file and one page out of parts' records, beside the rivals' figures."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from lorafleet_engine.bench import command
from lorafleet_engine.bench.bars import Bar, judge
from lorafleet_engine.bench.records import Entry, RecordFile

DOCS = Path(__file__).resolve().parents[3] / "docs" / "benchmarks"
RIVALS, BARS = DOCS / "rivals.json", DOCS / "bars.json"
DECODE = {
    "case": "decode",
    "batch": 64,
    "context": 192,
    "adapters": 32,
    "rank": "mixed",
    "ms": 7.77,
    "own_base_ms": 5.0,
    "floor_ms": 4.42,
    "caps": {"tokens": 2048},
}
SERVE = {"case": "serve", "zipf": 1.0, "state": "warm", "tok_s": 8765.0, "wall_s": 7.5}


def entry(key: str, record: dict[str, Any], commit: str = "abc", device: str = "NVIDIA H200") -> Entry:
    settings = {"shape": "qwen2.5-7b", "commit": commit, "repeats": 3}
    machine = {"device": device, "date": "2026-12-01T00:00:00+00:00", "torch": "2.11.0"}
    return Entry(str(record["case"]), key, settings, machine, record)


def merged(tmp_path: Path, *files: Path) -> int:
    out = ["--out", str(tmp_path / "out" / "engine.json"), "--rivals", str(RIVALS), "--bars", str(BARS)]
    return command.main(["merge", *map(str, files), *out])


def test_files_become_one_document_and_one_page(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    RecordFile(first).append(entry("one", {**DECODE, "ms": 9.0}))
    RecordFile(first).append(entry("one", DECODE))
    RecordFile(second).append(entry("two", SERVE))
    assert merged(tmp_path, first, second) == 0
    document = json.loads((tmp_path / "out" / "engine.json").read_text())
    assert document.keys() == {"device", "date", "commit", "settings", "records"}
    assert document["records"] == [DECODE, SERVE]
    page = (tmp_path / "out" / "engine.html").read_text()
    for figure in ("7.77", "8.463", "30.93", "8765", "8171", "vLLM 0.25.1", "SGLang 0.5.23", "57%"):
        assert figure in page, figure
    assert "fastest" not in page.lower()
    assert "<script" not in page


def test_bars_and_goals_are_judged() -> None:
    bars = [Bar(**each) for each in json.loads(BARS.read_text())]
    http = {"case": "http", "ratio": 0.957}
    found = {each.name: each for each in judge(bars, [DECODE, SERVE, {**DECODE, "context": 5000, "ms": 1.0}, http])}
    decode = found["32 adapters of ranks 8 to 64, B = 64, ms"]
    assert (decode.value, decode.bar_met, decode.goal, decode.goal_met) == (7.77, True, 6.9, False)
    serve = found["serving, Zipf 1.0, warm, tok/s"]
    assert (serve.bar_met, serve.goal_met) == (True, False)
    served = found["own HTTP server, 256 streams, over in-process"]
    assert (served.bar_met, served.goal_met) == (True, False)
    assert sum(each.value is None for each in found.values()) == len(bars) - 3
    assert len(found) == len(bars)


def test_other_devices_figures_stand_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    RecordFile(file).append(entry("one", DECODE, device="cpu"))
    assert merged(tmp_path, file) == 0
    page = (tmp_path / "out" / "engine.html").read_text()
    assert "7.77" in page
    assert "vLLM" not in page


@pytest.mark.parametrize("other", [{"commit": "def"}, {"device": "cpu"}])
def test_what_was_measured_apart_is_not_put_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, str]
) -> None:
    file = tmp_path / "a.jsonl"
    RecordFile(file).append(entry("one", DECODE))
    RecordFile(file).append(entry("two", SERVE, **other))
    assert merged(tmp_path, file) == 1
    assert "do not belong into one table" in capsys.readouterr().err


def test_nothing_to_merge(tmp_path: Path) -> None:
    assert merged(tmp_path, tmp_path / "none.jsonl") == 1


def test_a_line_cut_off_in_writing_costs_only_itself(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "a.jsonl")
    file.append(entry("one", DECODE))
    with (tmp_path / "a.jsonl").open("a") as raw:
        raw.write('{"part": "serve", "key"')
    file.append(entry("two", SERVE))
    assert [each.key for each in file.entries()] == ["one", "two"]


def test_is_a_command_of_lorafleet() -> None:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    parsed = parser.parse_args(["bench", "engine", "--part", "serve", "--records", "x"])
    assert (parsed.part, parsed.repeats, parsed.budget, parsed.tiny) == (["serve"], 3, 480.0, False)


def test_the_rivals_name_their_versions() -> None:
    engines = json.loads(RIVALS.read_text())["engines"]
    assert {(engine["name"], engine["version"]) for engine in engines} == {("vLLM", "0.25.1"), ("SGLang", "0.5.23")}
    assert all(engine["settings"]["adapter_slots"] in (32, 200) for engine in engines)
