"""Records which laws held in how many cases, one JSON file a module. Registered by tests/conftest.py in long runs."""

import os
from collections import defaultdict
from pathlib import PurePath

import pytest

from e2e.reliability.records import write_record


class LawRecords:
    """Gathers the ends of tests; modules whose tests all passed are recorded when the session ends."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._seconds: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A step of a test ended (with workers, in one of them)."""
        module, _, name = report.nodeid.partition("::")
        if report.failed:
            self._failed.add(module)
        elif report.when == "call" and report.passed and "hypothesis" in report.keywords:
            self._seconds[module][name] = round(report.duration, 1)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the records; workers leave that to the process that they report to."""
        if os.environ.get("PYTEST_XDIST_WORKER"):
            return
        for module, seconds in self._seconds.items():
            if module not in self._failed:
                path = PurePath(module)
                name = f"laws-{path.parent.name}-{path.stem.removeprefix('test_')}"
                write_record(name, {"module": module, "cases": self._wanted, "seconds": seconds})
