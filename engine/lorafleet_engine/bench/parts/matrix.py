"""Decode steps of the rows that have no bar. See decode.py."""

from collections.abc import Iterator

from lorafleet_engine.bench.bench import Bench, Case
from lorafleet_engine.bench.parts import decode


def cases(bench: Bench) -> Iterator[Case]:
    """Smallest batch first; the base of each is measured again."""
    return decode.matrix(bench, barred=False)
