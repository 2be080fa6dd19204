"""Fenced writes to the API server. Called by execute.py and credentials.py; decides nothing."""

import logging
from collections.abc import Mapping
from typing import Any

from lorafleet_contracts.names import API_VERSION, FIELD_MANAGER
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_operator.core.actions import Apply, Delete, StatusWrite, Warn
from lorafleet_operator.shell.events import Event
from lorafleet_operator.shell.kinds import BY_NAME, EVENTS
from lorafleet_operator.shell.lease import Lease

log = logging.getLogger(__name__)

Object = dict[str, Any]
GONE, CONFLICT = 404, 409


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

    async def delete(self, action: Delete) -> None:
        """End one of our own objects and what it owns. One that is gone, or that is not ours, is left alone.

        By uid: a namesake that is created in the meantime stays. Raises as `apply`.
        """
        kind, _, name = action.key.partition("/")
        path = BY_NAME[kind].path(action.namespace, name)
        self._lease.check()
        try:
            meta = (await self._api.get(path))["metadata"]
            if action.owner not in [each["uid"] for each in meta.get("ownerReferences", [])]:
                log.warning("%s in %s stays: it does not belong to this pool", action.key, action.namespace)
                return
            options = {"preconditions": {"uid": meta["uid"]}, "propagationPolicy": "Background"}
            self._lease.check()
            await self._api.request("DELETE", path, body=options)
        except ApiError as error:
            if error.code not in (GONE, CONFLICT):
                raise

    async def write_status(self, write: StatusWrite, revision: int) -> Object:
        """Set the status of the object as it was at `revision`.

        The API server ignores a uid in an apply of /status, so only the resource version keeps a verdict from landing
        on a namesake that was created in the meantime. Raises ApiError 404 when the object is gone and 409 when it is
        not that one any more, else as `apply`.
        """
        path = BY_NAME[write.kind].path(write.namespace, write.name, "status")
        body = {
            "apiVersion": API_VERSION,
            "kind": write.kind,
            "metadata": {"name": write.name, "namespace": write.namespace, "resourceVersion": str(revision)},
            "status": write.status.wire(),
        }
        return await self._apply(path, body)

    async def warn(self, warning: Warn) -> None:
        """Put an event beside an object; one that is there already is as good. Raises as `apply`."""
        written = warning.about
        about = {"apiVersion": API_VERSION, "kind": written.kind}
        about |= {"namespace": written.namespace, "name": written.name, "uid": written.uid}
        event = Event(about, warning.reason, warning.message, FIELD_MANAGER, warning.type)
        self._lease.check()
        try:
            await self._api.request("POST", EVENTS.path(written.namespace), body=event.body(name=warning.name))
        except ApiError as error:
            if error.code != CONFLICT:
                raise

    async def _apply(self, path: str, body: Mapping[str, Any]) -> Object:
        self._lease.check()
        return await self._api.apply(path, body, manager=FIELD_MANAGER, force=True)
