"""docs/operations.md names every reason that the operator can give, with why and what to do, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorafleet_contracts.conditions import Reason
from lorafleet_operator.core.pools import STUCK
from lorafleet_operator.core.promotion import Why
from lorafleet_operator.core.story import RECOVERED, UPDATED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
CORE = ROOT / "operator" / "lorafleet_operator" / "core"
NAME = re.compile(r"`([A-Za-z]+)`")
REASON = re.compile(r"([A-Z][a-z]+){1,5}")
EVENT_TYPES = ("Normal", "Warning")


def read_tables() -> dict[str, list[list[str]]]:
    """The rows of the page's tables by the `##` section that they are in, without their heads."""
    tables: dict[str, list[list[str]]] = {}
    section = ""
    for line in PAGE.read_text().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if line.startswith("| `"):
            tables.setdefault(section, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return tables


TABLES = read_tables()


def named(section: str) -> list[str]:
    """The reasons that the rows of a section are about."""
    return [name for row in TABLES[section] for name in NAME.findall(row[0])]


def words(module: str, *functions: str) -> Iterator[str]:
    """Reasons written out as arguments in calls of these functions."""
    for node in ast.walk(ast.parse((CORE / module).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and REASON.fullmatch(part.value):
                    yield part.value


def test_reasons_of_conditions() -> None:
    told_as_event = {Reason.BUDGET_DIFFERS.value}
    pods = set(STUCK)
    assert sorted(named("Reasons of conditions")) == sorted({each.value for each in Reason} - told_as_event | pods)


def test_reasons_of_promotions() -> None:
    assert sorted(named("Reasons of a tenant's promotion")) == sorted(each.value for each in Why)


def test_reasons_of_rank_classes() -> None:
    found = set(words("ranks.py", "_Finding"))
    assert len(found) > 3
    assert sorted(named("Reasons of a pool's rank classes")) == sorted(found)


def test_events() -> None:
    written = {RECOVERED, UPDATED, Reason.BUDGET_DIFFERS.value, Reason.VERIFIED_WITH_WARNINGS.value}
    written |= {*words("planning.py", "Warn"), *words("announcing.py", "_event")} - set(EVENT_TYPES)
    assert sorted(named("Events")) == sorted(written)


@pytest.mark.parametrize("section", sorted(TABLES))
def test_every_row_says_why_and_what_to_do(section: str) -> None:
    for row in TABLES[section]:
        assert len(row) >= 3, row
        assert all(row), row
