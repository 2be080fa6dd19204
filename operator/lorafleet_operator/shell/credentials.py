"""The installation's port keys and each pool's tokens. Called by main.py and observe.py. Never logs a key or token."""

import base64
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.names import PORT_KEYS_SECRET
from lorafleet_contracts.tokens import port_token
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.paths import SECRETS
from lorafleet_operator.core.snapshot import PoolTokens
from lorafleet_operator.shell.lease import Lease, OwnersOf

log = logging.getLogger(__name__)

NEXT, PREVIOUS = "-next", "-previous"
KEY_BYTES = 32
NOT_FOUND, CONFLICT = 404, 409


@dataclass(frozen=True, slots=True)
class PortKeys:
    """Random keys, one a port; while they rotate each has its successor or its predecessor beside it."""

    by_entry: Mapping[str, bytes] = field(repr=False)

    def tokens_for(self, pool_uid: str) -> PoolTokens:
        """What a pool's engines accept: the token of the current key, then those of its successor and predecessor."""
        return PoolTokens({port.value: self._accepted(pool_uid, port) for port in PortName})

    def _accepted(self, pool_uid: str, port: PortName) -> tuple[str, ...]:
        found = (self.by_entry.get(port.value + suffix) for suffix in ("", NEXT, PREVIOUS))
        return tuple(port_token(key, pool_uid, port) for key in found if key)


def read_port_keys(secret: Mapping[str, Any]) -> PortKeys:
    """The keys of a Secret as the API server shows it. Also used by `lorafleet ports`."""
    data = secret.get("data") or {}
    return PortKeys({name: base64.b64decode(value).strip() for name, value in data.items()})


class PortKeyStore:
    """The Secret with the port keys in the operator's own namespace."""

    def __init__(self, api: KubeApi, lease: Lease, namespace: str, owners: OwnersOf) -> None:
        self._api = api
        self._lease = lease
        self._namespace = namespace
        self._owners = owners

    async def load(self) -> PortKeys:
        """Read the keys; the leader makes them where there are none. Raises NotLeadingError or KubeError."""
        found = await self._get()
        if found is None:
            found = await self._create()
        return read_port_keys(found)

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
