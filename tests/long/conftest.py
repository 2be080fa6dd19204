"""Soaks of a whole engine on this machine. All are `long`: they run in `make test-long` only."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies here; how long a test may take is its own settings' business."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.long)
            item.add_marker(pytest.mark.timeout(0))
