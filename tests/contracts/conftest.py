"""Fixtures of the contracts tests."""

from tests.support.apiserver import apiserver

__all__ = ["apiserver"]
