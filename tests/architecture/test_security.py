"""docs/security.md: every attack that is said to be defended names tests that exist; counts are those of the record."""

from pathlib import Path

import pytest

from e2e.attacks.kinds import KINDS
from e2e.attacks.page import read_record, replace_section
from tests.architecture.test_complaints import TEST, functions_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
DEFENDED = PAGE.partition("## What is defended")[2].partition("\n## ")[0]
ROWS = [line for line in DEFENDED.splitlines() if line.startswith("|")][2:]


def test_there_are_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS, ids=[str(number) for number in range(1, len(ROWS) + 1)])
def test_a_defence_is_shown_by_tests_that_exist(row: str) -> None:
    named = TEST.findall(row)
    assert named, row
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert name in functions_of(ROOT / file), f"{file} has no {name}"


def test_the_counts_are_those_of_the_recorded_run() -> None:
    record = read_record()
    assert list(record["kinds"]) == list(KINDS)
    assert replace_section(PAGE, record) == PAGE, "run `make attacks`"
