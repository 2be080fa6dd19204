"""A real, empty API server for a test session; tests/conftest.py offers the fixture to all tests.

Fakes nothing. Its programs must be built before (`python3 -m e2e.cluster binaries etcd kube-apiserver`).
"""

from collections.abc import Iterator

import pytest

from e2e.cluster.apiserver import ApiServer, start_apiserver, stop_apiserver
from e2e.cluster.paths import find_cache


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One API server for the whole session, ended with it (by the kernel, should the session be killed)."""
    state = tmp_path_factory.mktemp("apiserver")
    try:
        yield start_apiserver(find_cache(), state, die_with_parent=True)
    finally:
        stop_apiserver(state)
