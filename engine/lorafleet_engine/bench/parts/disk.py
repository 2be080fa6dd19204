"""Serving with nothing resident, every adapter from the disk tier. See cold.py."""

from collections.abc import Iterator

from lorafleet_engine.bench.bench import Bench, Case
from lorafleet_engine.bench.parts.cold import Arms


def cases(bench: Bench) -> Iterator[Case]:
    """The second cold arm."""
    yield Case("cold-disk", Arms(bench).disk)
