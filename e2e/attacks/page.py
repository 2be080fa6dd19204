"""The counts of attacks: a record of a run, and the section of docs/security.md made of it. No cluster is needed."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from e2e.attacks.siege import Outcome
from e2e.cluster.paths import REPOSITORY
from e2e.reliability.records import Record

RECORD = REPOSITORY / "docs" / "attacks.json"
PAGE = REPOSITORY / "docs" / "security.md"
BEGIN, END = "<!-- attacks: written by `make attacks` -->\n", "<!-- attacks: end -->\n"
HEAD = """
| attacks | tried | what came back |
|---|---|---|
"""


def count(outcomes: Mapping[str, Iterable[Outcome]]) -> Record:
    """What a record says: by kind, how often which answer came back."""
    return {"kinds": {kind: dict(Counter(each.answer for each in found)) for kind, found in outcomes.items()}}


def render(record: Mapping[str, Any]) -> str:
    """The section's generated part."""
    rows = [
        f"| {kind} | {sum(answers.values())} | {_enumerate(answers)} |\n" for kind, answers in record["kinds"].items()
    ]
    total = sum(sum(answers.values()) for answers in record["kinds"].values())
    seen = (
        f"\n{total} attacks in {record['seconds']:.0f} s ({record['date']}, {record['machine']}), every one refused or "
        f"without effect. Beside them a tenant asked on: {record['neighbour']} right answers, none wrong. Of "
        f"{record['secrets']} keys, guesses and tokens and of the prompts, none is in {record['lines']} lines of "
        "logs of gateway, operator and engines, events and objects.\n"
    )
    return HEAD + "".join(rows) + seen


def read_record() -> Record:
    """The record of the last run that was recorded."""
    found: Record = json.loads(RECORD.read_text())
    return found


def replace_section(page: str, record: Mapping[str, Any]) -> str:
    """The page with its generated part written anew. Raises ValueError where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"docs/security.md has no lines {BEGIN.strip()} and {END.strip()}")
    return before + begin + render(record) + "\n" + end + after


def _enumerate(answers: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {answer}" for answer, count in sorted(answers.items(), key=lambda each: -each[1]))
