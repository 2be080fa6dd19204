"""Records which laws held in how many cases, one JSON file a module. Registered by tests/conftest.py in long runs."""

import os
import re
from collections import defaultdict
from pathlib import PurePath

import pytest

from e2e.reliability.records import write_record

CASES = "cases"
PASSING = re.compile(r"(\d+) passing")
"""Cases in hypothesis' own account of a phase. They are fewer than wanted where there are no more different ones."""


class LawRecords:
    """Gathers the ends of tests; modules whose tests all passed are recorded when the session ends."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._cases: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """A test is over: its reports carry how many cases hypothesis tried (from a worker to its controller, too)."""
        account: str | None = getattr(item, "hypothesis_statistics", None)
        if account is not None:
            item.user_properties.append((CASES, sum(map(int, PASSING.findall(account)))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A step of a test ended (with workers, in one of them)."""
        module, _, name = report.nodeid.partition("::")
        if report.failed:
            self._failed.add(module)
        elif report.when == "call" and report.passed and "hypothesis" in report.keywords:
            self._seconds[module][name] = round(report.duration, 1)
        elif report.when == "teardown" and CASES in dict(report.user_properties):
            self._cases[module][name] = int(str(dict(report.user_properties)[CASES]))

    def pytest_sessionfinish(self) -> None:
        """Write the records; workers leave that to the process that they report to."""
        if os.environ.get("PYTEST_XDIST_WORKER"):
            return
        for module, seconds in self._seconds.items():
            if module not in self._failed:
                path = PurePath(module)
                name = f"laws-{path.parent.name}-{path.stem.removeprefix('test_')}"
                write_record(name, {"module": module, "cases": self._cases[module], "seconds": seconds})
