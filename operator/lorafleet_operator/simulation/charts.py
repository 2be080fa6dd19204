"""Charts of runs as SVG: nothing to load, no script, the same bytes for the same run. Called by reports only.

Needs the extra `report` (matplotlib).
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

HOUR = 3600.0
COLORS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2", "#65a30d", "#be185d")
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "lorafleet",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart over time: `lines` and `areas` (stacked) by label, `marks` are (second, words) of what happened."""

    title: str
    unit: str
    times: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    areas: Mapping[str, Sequence[float]] | None = None
    marks: Sequence[tuple[float, str]] = ()


def draw(panels: Sequence[Panel], width: float = 9.0, height: float = 2.2) -> str:
    """All panels below one another, with one axis of time in hours, as an SVG element."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height * len(panels)), layout="constrained")
        for place, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(len(panels), 1, place)
            hours = [each / HOUR for each in panel.times]
            if panel.areas:
                axes.stackplot(
                    hours, *panel.areas.values(), labels=list(panel.areas), colors=COLORS, alpha=0.55, step="pre"
                )
            first = len(panel.areas or {})
            for number, (label, values) in enumerate(panel.lines.items(), start=first):
                axes.plot(hours, values, label=label, color=COLORS[number % len(COLORS)], linewidth=1.3)
            for at, words in panel.marks:
                axes.axvline(at / HOUR, color="#6b7280", linewidth=0.8, linestyle=":")
                axes.annotate(words, (at / HOUR, 1.0), xycoords=("data", "axes fraction"), fontsize=7, va="bottom")
            axes.set_title(panel.title, loc="left", fontsize=10, pad=12)
            axes.set_ylabel(panel.unit)
            axes.set_ylim(bottom=0)
            axes.margins(x=0)
            if len(panel.lines) + first > 1:
                axes.legend(loc="upper right", fontsize=7, framealpha=0.8)
            if place == len(panels):
                axes.set_xlabel("hours")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
