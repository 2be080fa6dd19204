"""Every shell block of README.md and docs/ says which test runs it, or why none does."""

import subprocess
from collections import Counter

import pytest

from tests.support.shell_blocks import HEIGHTS, LANGUAGES, Block, read_blocks

BLOCKS = read_blocks()
SHELL = [block for block in BLOCKS if block.language == "sh"]


def test_every_fence_names_its_language() -> None:
    """One without, or with words behind it, might be a shell block that nobody runs; mkdocs spoils the latter."""
    assert {block.where: block.language for block in BLOCKS if block.language not in LANGUAGES} == {}


def test_only_shell_blocks_are_tagged() -> None:
    assert [block.where for block in BLOCKS if block.language != "sh" and (block.height or block.excuse)] == []


@pytest.mark.parametrize("block", SHELL, ids=[block.where for block in SHELL])
def test_a_shell_block_is_shell_and_is_run_or_excused(block: Block) -> None:
    assert block.height in HEIGHTS or block.excuse, "a line above it: <!-- run: HEIGHT --> or <!-- no-run: WHY -->"
    checked = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False)
    assert checked.stderr == ""


def test_blocks_that_nobody_runs_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    heights = Counter(block.height for block in SHELL if block.height)
    excused = [block for block in SHELL if block.excuse]
    assert sum(heights.values()) + len(excused) == len(SHELL)
    run = ", ".join(f"{count} {height}" for height, count in sorted(heights.items()))
    with capsys.disabled():
        print(f"\n{len(SHELL)} shell blocks in README.md and docs/: {run}; {len(excused)} are not run:")
        for block in excused:
            print(f"  {block.where}: {block.excuse}")
