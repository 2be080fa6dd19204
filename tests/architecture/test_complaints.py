"""docs/complaints.md: every line names tests that exist, or says why it can't apply or which issue brings it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "complaints.md"
TEST = re.compile(r"`([\w/.-]+\.py)::(\w+)`")
ELSEWHERE = ("Can't apply: ", "Not yet: ")


def read_rows() -> list[tuple[str, int, str]]:
    """Section, number and proof of every row."""
    rows, section = [], ""
    for line in PAGE.read_text().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0].isdecimal():
            assert len(cells) == 3, line
            rows.append((section, int(cells[0]), cells[2]))
    return rows


ROWS = read_rows()


@cache
def functions_of(file: Path) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)}


@pytest.mark.parametrize(("section", "number", "proof"), ROWS, ids=[f"{row[0].split()[0]}-{row[1]}" for row in ROWS])
def test_a_line_is_proved_or_excused(section: str, number: int, proof: str) -> None:
    named = TEST.findall(proof)
    assert named or proof.startswith(ELSEWHERE)
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert name.startswith("test_"), name
        assert name in functions_of(ROOT / file), f"{file} has no {name}"


@pytest.mark.parametrize("section", sorted({row[0] for row in ROWS}))
def test_numbers_follow_each_other(section: str) -> None:
    numbers = [row[1] for row in ROWS if row[0] == section]
    assert numbers == list(range(1, len(numbers) + 1))
