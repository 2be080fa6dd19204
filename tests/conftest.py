"""Fixtures that more than one room's tests use: one bare API server serves the whole session."""

from tests.support.apiserver import apiserver

__all__ = ["apiserver"]
