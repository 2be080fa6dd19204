"""Installs our CRDs on a real API server, for tests at that height."""

import asyncio

from lorafleet_contracts.crd import KINDS, definition
from lorafleet_kube.api import KubeApi
from lorafleet_kube.paths import Kind

DEFINITIONS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")


async def install_crds(api: KubeApi) -> None:
    """Apply all three and wait until they are served."""
    bodies = [definition(kind) for kind in KINDS]
    for body in bodies:
        await api.apply(DEFINITIONS.path(name=body["metadata"]["name"]), body, manager="tests", force=True)
    async with asyncio.timeout(20):
        for body in bodies:
            while not await _established(api, body["metadata"]["name"]):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def _established(api: KubeApi, name: str) -> bool:
    found = await api.get(DEFINITIONS.path(name=name))
    conditions = found.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
