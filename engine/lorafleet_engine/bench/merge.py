"""Records of all parts into one JSON file and one HTML page beside it. Used by command.py. Torch-free."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lorafleet_engine.bench.bars import Bar, judge
from lorafleet_engine.bench.records import Entry, RecordFile
from lorafleet_engine.bench.report import render


class NothingToMergeError(Exception):
    """No finished case in any of the files, or cases that must not stand in one table."""


def merge(files: Sequence[Path], rivals: Path, bars: Path, out: Path) -> dict[str, Any]:
    """Write `out` and its .html; returns what was written and how many records. The last run of a case counts.

    Raises NothingToMergeError, also when records come from different devices, shapes or commits.
    """
    latest = {(entry.part, entry.key): entry for file in files for entry in RecordFile(file).entries()}
    entries = list(latest.values())
    if not entries:
        raise NothingToMergeError(f"no records in {', '.join(map(str, files))}")
    document = {
        "device": _only("devices", [entry.machine["device"] for entry in entries]),
        "date": max(entry.machine["date"] for entry in entries),
        "commit": _only("commits", [entry.settings["commit"] for entry in entries]),
        "settings": {**entries[-1].settings, "runs": _runs(entries)},
        "records": [entry.record for entry in entries],
    }
    _only("shapes", [entry.settings["shape"] for entry in entries])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    page, verdicts = (
        out.with_suffix(".html"),
        judge([Bar(**each) for each in json.loads(bars.read_text())], document["records"]),
    )
    page.write_text(render(document, json.loads(rivals.read_text()), verdicts))
    return {
        "json": str(out),
        "html": str(page),
        "records": len(entries),
        "bars_missed": [each.name for each in verdicts if each.bar_met is False],
        "not_measured": [each.name for each in verdicts if each.value is None],
    }


def _only(what: str, values: Sequence[str]) -> str:
    if len(set(values)) > 1:
        raise NothingToMergeError(f"records of several {what} do not belong into one table: {sorted(set(values))}")
    return values[0]


def _runs(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Each run that records come from: its part, when it began, its torch and the bandwidth it measured."""
    runs = {(entry.part, entry.machine["date"]): entry.machine for entry in entries}
    return [{"part": part, **machine} for (part, _), machine in sorted(runs.items(), key=lambda run: run[0][1])]
