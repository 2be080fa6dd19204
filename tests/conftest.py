"""Fixtures that more than one room's tests use: one bare API server serves the whole session."""

import os

import pytest
from hypothesis import settings

from tests.support.apiserver import apiserver
from tests.support.law_records import LawRecords

__all__ = ["apiserver"]


def pytest_configure(config: pytest.Config) -> None:
    """A run whose laws are tried in many cases leaves records. No case has a deadline: a busy machine would miss it."""
    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")
    if os.environ.get("LORAFLEET_CASES"):
        config.pluginmanager.register(LawRecords())
