"""Fixtures of the gateway's tests."""

from tests.support.apiserver import apiserver

__all__ = ["apiserver"]
