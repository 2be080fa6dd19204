"""Once an engine is ready nothing is compiled or captured, whatever comes."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]


def test_nothing_is_compiled_or_captured_after_ready() -> None:
    """In a process of its own, where no other test has compiled anything."""
    command = [sys.executable, "-m", "tests.engine.support.late_work", "cuda"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=220)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["compiled_before"] > 0, "the counters count"
    assert found["captured_before"] > 0, "the counters count"
    assert (found["compiled_after"], found["captured_after"]) == (0, 0)
