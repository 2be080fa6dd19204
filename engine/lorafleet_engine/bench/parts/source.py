"""Serving with nothing resident and nothing cached, every adapter from its source. See cold.py."""

from collections.abc import Iterator

from lorafleet_engine.bench.bench import Bench, Case
from lorafleet_engine.bench.parts.cold import Arms


def cases(bench: Bench) -> Iterator[Case]:
    """The third cold arm."""
    yield Case("cold-source", Arms(bench).source)
