"""Fixtures of the command line's tests."""

from tests.support.apiserver import apiserver

__all__ = ["apiserver"]
