"""What a person sees while phases run: a bar on a terminal, lines elsewhere, nothing when told to be quiet."""

import io

import pytest

from lorafleet_engine.bench.endpoint.asks import Ask
from lorafleet_engine.bench.endpoint.client import Outcome
from lorafleet_engine.bench.endpoint.models import Model
from lorafleet_engine.bench.endpoint.progress import Progress

FIGURES = {
    "name": "zipf 1, warm", "requests": 2, "requests_per_s": 4.0, "tokens_per_s": 8.0, "goodput_per_s": 2.0,
    "ttft_ms": {"p50": 10, "p99": 20}, "itl_ms": {"p50": 3, "p99": 5}, "errors": {"timeout": 1},
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, quiet: bool) -> str:
    monkeypatch.setattr("sys.stderr", stderr)
    progress, ask = Progress(quiet=quiet), Ask(0.0, 0, Model("a0"), 0, 10, 5)
    progress.begin("zipf 1, warm", 2)
    progress.note(Outcome(ask, sent=0.0))
    progress.note(Outcome(ask, sent=0.0, error="timeout"))
    progress.end(FIGURES)
    return stderr.getvalue()


def test_a_terminal_shows_a_bar_and_then_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch, quiet=False)
    assert "zipf 1, warm:   0%|" in text
    assert "0/2" in text
    assert "TTFT p50/p99 10/20 ms, ITL 3/5 ms, goodput 2.0/s, failed 1" in text


def test_elsewhere_there_are_lines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(io.StringIO(), monkeypatch, quiet=False)
    assert text.count("\n") == 1
    assert text.startswith("zipf 1, warm: 2 requests, 4.0 requests/s")
    assert shown(io.StringIO(), monkeypatch, quiet=True) == ""
