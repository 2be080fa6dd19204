"""Fixtures of the local cluster's own tests."""

from tests.support.apiserver import apiserver

__all__ = ["apiserver"]
