"""Fenced writes to the API server. Called by execute.py and credentials.py; compares and decides nothing."""

from collections.abc import Mapping
from typing import Any

from lorafleet_contracts.names import API_VERSION, FIELD_MANAGER
from lorafleet_kube.api import KubeApi
from lorafleet_operator.core.actions import Apply, StatusWrite
from lorafleet_operator.shell.kinds import BY_NAME
from lorafleet_operator.shell.lease import Lease

Object = dict[str, Any]


class Cluster:
    """The API server as the leader may change it: by server-side apply under one field manager."""

    def __init__(self, api: KubeApi, lease: Lease) -> None:
        self._api = api
        self._lease = lease

    async def apply(self, action: Apply) -> Object:
        """Create or change one of our own objects. Raises NotLeadingError, ApiError or UnreachableError."""
        meta = action.manifest["metadata"]
        path = BY_NAME[action.manifest["kind"]].path(meta["namespace"], meta["name"])
        return await self._apply(path, action.manifest)

    async def write_status(self, write: StatusWrite) -> Object:
        """Set a status. Raises ApiError 404 or 409 when the object of that uid is gone, else as `apply`."""
        path = BY_NAME[write.kind].path(write.namespace, write.name, "status")
        body = {
            "apiVersion": API_VERSION,
            "kind": write.kind,
            # The uid keeps a verdict from landing on a namesake that was created in the meantime.
            "metadata": {"name": write.name, "namespace": write.namespace, "uid": write.uid},
            "status": write.status.wire(),
        }
        return await self._apply(path, body)

    async def _apply(self, path: str, body: Mapping[str, Any]) -> Object:
        self._lease.check()
        return await self._api.apply(path, body, manager=FIELD_MANAGER, force=True)
