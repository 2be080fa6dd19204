"""The HTML page of a merged run: tables and one chart, beside the rivals' published figures. Used by merge.py.

Self-contained: no script, no file from elsewhere. It says whose figure is whose, with version and settings, and holds
our figures against the bars and goals that were set before.
"""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from lorafleet_engine.bench.bars import Verdict

Record = dict[str, Any]
STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
table{border-collapse:collapse;margin:.6rem 0 1.6rem}th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;
text-align:right}th:first-child,td:first-child{text-align:left}th{background:#f4f4f4}.us{font-weight:600}
code,pre{font-size:13px}pre{white-space:pre-wrap}svg text{font:12px system-ui,sans-serif}
"""
WIDTH, BAR, LABEL = 640, 18, 330
OURS = "LoraFleet"
RIVALS_SHAPE, RIVALS_DEVICE = "qwen2.5-7b", "H200"
"""Beside figures of anything else theirs would mislead."""
LONG_CONTEXT = 1000
SIDE_CASES = (
    "sweep",
    "load-stall",
    "chunked-prefill",
    "http",
    "start",
    "merged",
    "idle-residents",
    "fp8",
    "fp8-logits",
)
SIDE_HIDDEN = {"case", "caps", "settings", "from"}


def render(document: dict[str, Any], rivals: dict[str, Any], verdicts: Sequence[Verdict]) -> str:
    """The whole page."""
    alike = document["settings"]["shape"] == RIVALS_SHAPE and RIVALS_DEVICE in document["device"]
    engines, records = rivals["engines"] if alike else [], document["records"]
    sections = [
        _bars(verdicts) if alike else "",
        _decode(_of(records, "decode"), engines),
        _prefill(_of(records, "prefill"), engines),
        _serve(_of(records, "serve"), engines),
        *(_side(case, _of(records, case)) for case in SIDE_CASES),
        _settings(document, rivals["about"], engines),
    ]
    head = f"{document['device']}, {document['date']}, commit {document['commit']}"
    shape, repeats = document["settings"]["shape"], document["settings"]["repeats"]
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Engine benchmark</title><style>{STYLE}</style>"
        f"<h1>Engine benchmark</h1><p>{escape(head)}; shape {escape(shape)}. Medians of {repeats} repeats. "
        + ("" if alike else "The rivals' figures are for another device or shape, so they are left out. ")
        + "</p>"
        + "".join(sections)
        + "</html>\n"
    )


def _bars(verdicts: Sequence[Verdict]) -> str:
    rows = [[each.name, each.value, each.bar, _met(each.bar_met), each.goal, _met(each.goal_met)] for each in verdicts]
    return _section("Bars and goals", ["case", OURS, "bar", "", "goal", ""], rows, ours=1)


def _met(met: bool | None) -> str:
    return {True: "met", False: "missed", None: "not measured"}[met]


def _of(records: Sequence[Record], case: str) -> list[Record]:
    return [record for record in records if record["case"] == case]


def _decode(records: list[Record], engines: Sequence[Record]) -> str:
    rows = []
    for one in sorted(records, key=lambda r: (r["context"], r["adapters"], str(r["rank"]), r["batch"])):
        short = one["context"] < LONG_CONTEXT
        theirs = [
            _match(engine, one, ("case", "batch", "adapters", "rank"), "ms") if short else None for engine in engines
        ]
        name = f"{one['adapters']} of rank {one['rank']}" if one["adapters"] else "base"
        share = f"{one['floor_ms'] / one['ms']:.0%}"
        over = round(one["ms"] - one["own_base_ms"], 3) if one["adapters"] else None
        ours = [one["batch"], one["context"], one["ms"], one["own_base_ms"], over, one["floor_ms"], share]
        rows.append([name, *ours, *theirs])
    columns = [
        "adapters",
        "batch",
        "context",
        f"{OURS}, ms",
        "own base, ms",
        "over it, ms",
        "floor, ms",
        "floor / ms",
        *_labels(engines),
    ]
    return _section("Decode, milliseconds per step", columns, rows, ours=3)


def _prefill(records: list[Record], engines: Sequence[Record]) -> str:
    rows = [
        [
            f"{one['batch']} x {one['prompt']} tokens, {one['adapters']} adapters",
            one["ms"],
            one["own_base_ms"],
            one["ratio"],
        ]
        + [_match(engine, one, ("case", "batch"), "ratio") for engine in engines]
        for one in records
    ]
    columns = ["case", "ms", "own base, ms", f"{OURS}, over own base", *_labels(engines)]
    return _section("Prefill, over the engine's own base", columns, rows, ours=3)


def _serve(records: list[Record], engines: Sequence[Record]) -> str:
    rows, charts = [], []
    for one in records:
        name = "base only" if one["zipf"] is None else f"Zipf {one['zipf']}"
        warm = one["state"] == "warm"
        theirs = [_match(engine, one, ("case", "zipf", "state"), "tok_s") if warm else None for engine in engines]
        rows.append([f"{name}, {one['state']}", one["tok_s"], one["wall_s"], one.get("over_warm"), *theirs])
        if warm:
            bars = [(OURS, one["tok_s"]), *zip(_labels(engines), theirs, strict=True)]
            charts.append(_chart(f"{name}, warm, tokens per second", [bar for bar in bars if bar[1] is not None]))
    columns = ["requests", f"{OURS}, tok/s", "wall, s", "over warm", *_labels(engines)]
    return _section("Serving, generated tokens per second", columns, rows, ours=1) + "".join(charts)


def _side(case: str, records: list[Record]) -> str:
    if not records:
        return ""
    names = [name for name in records[0] if name not in SIDE_HIDDEN and "repeats" not in name]
    return _section(case, names, [[record.get(name) for name in names] for record in records], ours=-1)


def _settings(document: dict[str, Any], about: Sequence[str], engines: Sequence[Record]) -> str:
    theirs = "".join(
        f"<h3>{escape(engine['label'])}</h3><pre>{escape(json.dumps(engine['settings'], indent=1))}</pre>"
        for engine in engines
    )
    if engines:
        notes = "".join(f"<li>{escape(line)}</li>" for line in about)
        theirs = f"<h2>The rivals' figures</h2><ul>{notes}</ul>{theirs}"
    caps = {json.dumps(record["caps"]) for record in document["records"] if "caps" in record}
    ours = escape(json.dumps(document["settings"], indent=1)) + "\ncaps of a step:\n" + escape("\n".join(sorted(caps)))
    return f"<h2>Settings</h2><h3>{OURS}</h3><pre>{ours}</pre>{theirs}"


def _match(engine: Record, ours: Record, keys: Sequence[str], field: str) -> float | None:
    """The rival's figure for the same case, if it has one."""
    for record in engine["records"]:
        if all(record.get(key) == ours[key] for key in keys):
            found: float | None = record.get(field)
            return found
    return None


def _labels(engines: Sequence[Record]) -> list[str]:
    return [str(engine["label"]) for engine in engines]


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], ours: int) -> str:
    """A table; the column numbered `ours` is set in bold."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(_cell(value, at == ours) for at, value in enumerate(row)) + "</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _cell(value: Any, bold: bool) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{name} {each}" for name, each in value.items())
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value}"
    return f"<td class='us'>{escape(text)}</td>" if bold else f"<td>{escape(text)}</td>"


def _chart(title: str, bars: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars from zero."""
    most = max(value for _, value in bars)
    drawn = []
    for number, (name, value) in enumerate(bars):
        top = number * (BAR + 6)
        width = value / most * (WIDTH - LABEL - 80)
        colour = "#0b6e4f" if name == OURS else "#9aa5b1"
        drawn.append(
            f"<text x='{LABEL - 8}' y='{top + 13}' text-anchor='end'>{escape(name)}</text>"
            f"<rect x='{LABEL}' y='{top}' width='{width:.1f}' height='{BAR}' fill='{colour}'/>"
            f"<text x='{LABEL + width + 6:.1f}' y='{top + 13}'>{value:,.0f}</text>"
        )
    height = len(bars) * (BAR + 6)
    return f"<h3>{escape(title)}</h3><svg width='{WIDTH}' height='{height}' role='img'>{''.join(drawn)}</svg>"
