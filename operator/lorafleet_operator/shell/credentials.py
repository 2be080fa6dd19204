"""The Secret with the installation's port keys. Called by main.py and rotation.py. Never logs a key or token."""

import base64
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.names import PORT_KEYS_SECRET
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.paths import SECRETS
from lorafleet_operator.core.port_keys import PortKeys
from lorafleet_operator.shell.lease import Lease, OwnersOf

log = logging.getLogger(__name__)

KEY_BYTES = 32
NOT_FOUND, CONFLICT = 404, 409


def read_port_keys(secret: Mapping[str, Any]) -> PortKeys:
    """The keys of a Secret as the API server shows it."""
    data = secret.get("data") or {}
    return PortKeys({name: base64.b64decode(value).strip() for name, value in data.items()})


class PortKeyStore:
    """The Secret with the port keys in the operator's own namespace."""

    def __init__(self, api: KubeApi, lease: Lease, namespace: str, owners: OwnersOf) -> None:
        self._api = api
        self._lease = lease
        self._namespace = namespace
        self._owners = owners

    async def load(self) -> dict[str, Any]:
        """Read the Secret; the leader makes it where there is none. Raises NotLeadingError or KubeError."""
        return await self._get() or await self._create()

    async def _get(self) -> dict[str, Any] | None:
        try:
            return await self._api.get(SECRETS.path(self._namespace, PORT_KEYS_SECRET))
        except ApiError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    async def _create(self) -> dict[str, Any]:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {
                "name": PORT_KEYS_SECRET,
                "namespace": self._namespace,
                "ownerReferences": await self._owners(),
            },
            "stringData": {port.value: secrets.token_hex(KEY_BYTES) for port in PortName},
        }
        self._lease.check()
        try:
            created = await self._api.request("POST", SECRETS.path(self._namespace), body=body)
        except ApiError as error:
            if error.code != CONFLICT:
                raise
            return await self._api.get(SECRETS.path(self._namespace, PORT_KEYS_SECRET))
        log.info("made Secret %s/%s", self._namespace, PORT_KEYS_SECRET)
        return created
