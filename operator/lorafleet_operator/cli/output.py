"""How commands print: tables for people, JSON for programs. Called by the commands of this room; computes nothing."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 240
"""Columns where the output is no terminal: nothing is cut for a program that reads it."""


def add_output_option(parser: argparse.ArgumentParser) -> None:
    """Add `-o json|table`."""
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="default: table")


def print_json(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print one table."""
    console().print(build_table(title, columns, rows))


def build_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """One table; columns that begin with `#` are numbers and stand to the right. Text is shown as it is."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column.startswith("#")
        table.add_column(column.removeprefix("#"), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if each is None else str(each)) for each in row))
    return table


def console() -> Console:
    """Standard output as it is now."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, highlight=False, width=None if terminal else PIPE_WIDTH)


def fail(error: object) -> int:
    """Tell people what is wrong; returns the exit code."""
    print(f"lorafleet: {error}", file=sys.stderr)
    return 1


def share(part: int, whole: int) -> str:
    """A percentage for people."""
    return f"{part / whole:.2%}" if whole else "0.00%"
