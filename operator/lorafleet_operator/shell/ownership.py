"""Who owns what the operator makes in its own namespace: its Deployment. Called when such an object is created."""

from typing import Any

from lorafleet_kube.api import KubeApi
from lorafleet_operator.shell.kinds import DEPLOYMENTS


class Installation:
    """The operator's own Deployment, if it knows its name."""

    def __init__(self, api: KubeApi, namespace: str, deployment: str | None) -> None:
        self._api = api
        self._namespace = namespace
        self._deployment = deployment

    async def owners(self) -> list[dict[str, Any]]:
        """The ownerReferences; empty outside a Deployment. Raises KubeError."""
        if self._deployment is None:
            return []
        found = await self._api.get(DEPLOYMENTS.path(self._namespace, self._deployment))
        uid = found["metadata"]["uid"]
        return [{"apiVersion": "apps/v1", "kind": "Deployment", "name": self._deployment, "uid": uid}]
