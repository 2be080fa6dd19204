"""The engine as it is deployed under requests that come when they come; see bench/open_run.py."""

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

from lorafleet_engine.bench.bench import Bench, Case
from lorafleet_engine.bench.session import BenchError


def cases(bench: Bench) -> Iterator[Case]:
    """One server for all of it."""

    def run() -> dict[str, Any]:
        if importlib.util.find_spec("aiohttp") is None:
            raise BenchError("the client needs aiohttp, which is not installed here (pip install 'lorafleet[bench]')")
        found: dict[str, Any] = importlib.import_module("lorafleet_engine.bench.open_run").measure(bench)
        return found

    yield Case("open", run)
