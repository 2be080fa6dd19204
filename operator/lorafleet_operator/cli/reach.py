"""A port of an engine through the API server, as a command reaches it: by TLS, and proven to be of its pool, where the
pod has TLS. Called by top.py and ports.py."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from lorafleet_contracts.names import EnginePort
from lorafleet_kube.api import KubeApi
from lorafleet_kube.forward import forward
from lorafleet_operator.shell.records import read_server_name
from lorafleet_operator.shell.trust import TlsOptions, Trust


@asynccontextmanager
async def reach(
    api: KubeApi, pod: Mapping[str, Any], port: EnginePort, trust: Trust
) -> AsyncIterator[tuple[str, TlsOptions]]:
    """The base URL of a pod's port while it is open, and what each request needs beside it."""
    meta, server_name = pod["metadata"], read_server_name(pod)
    async with forward(api, (meta["namespace"], meta["name"]), port) as address:
        yield f"{'https' if server_name else 'http'}://{address}", trust.options(server_name)
