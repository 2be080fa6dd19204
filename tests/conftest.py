"""Fixtures that more than one room's tests use: one bare API server serves the whole session."""

import os

import pytest

from tests.support.apiserver import apiserver
from tests.support.law_records import LawRecords

__all__ = ["apiserver"]


def pytest_configure(config: pytest.Config) -> None:
    """A run whose laws are tried in many cases leaves records."""
    wanted = os.environ.get("LORAFLEET_CASES")
    if wanted:
        config.pluginmanager.register(LawRecords(int(wanted)))
