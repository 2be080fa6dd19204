"""A real API server with our CRDs, an operator as its own process, and engines that are stubs behind real HTTP."""

from collections.abc import AsyncIterator, Iterator

import pytest

from e2e.cluster.apiserver import ApiServer
from lorafleet_kube.access import load_access
from lorafleet_kube.api import KubeApi, connect
from tests.support.operator_process import OperatorProcess
from tests.support.team import Team, install_crds, make_team


@pytest.fixture(scope="session")
def crds(apiserver: ApiServer) -> ApiServer:
    """The API server with the three kinds."""
    install_crds(apiserver)
    return apiserver


@pytest.fixture
async def api(crds: ApiServer) -> AsyncIterator[KubeApi]:
    """The administrator's connection."""
    async with connect(await load_access(str(crds.kubeconfig))) as connection:
        yield connection


@pytest.fixture
async def team(api: KubeApi) -> AsyncIterator[Team]:
    """A namespace of its own, cleaned of our objects afterwards."""
    async with make_team(api) as made:
        yield made


@pytest.fixture
async def system(api: KubeApi) -> str:
    """The operator's namespace."""
    async with make_team(api) as made:
        return made.namespace


@pytest.fixture
def operator(crds: ApiServer, system: str) -> Iterator[OperatorProcess]:
    """A running operator."""
    process = OperatorProcess(crds.kubeconfig, system)
    process.start()
    try:
        yield process
    finally:
        process.stop()
