"""`lorafleet key create`: gives a tenant one more API key. Called by the `lorafleet` command; the key is shown once."""

import argparse
import asyncio
import re
import secrets
import sys
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from lorafleet_contracts.keys import SECRET_BYTES, KeyName, format_key, key_digest
from lorafleet_contracts.names import API_VERSION, GROUP, VERSION
from lorafleet_kube.access import load_access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_kube.errors import ApiError, KubeError
from lorafleet_kube.paths import Kind

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

TENANTS = Kind(GROUP, VERSION, "tenants")
MANAGER_PREFIX = "lorafleet-key-"
"""Each entry has a field manager of its own: applying the next one must not take the last one back."""
ATTEMPTS = 5
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class KeyRefusedError(Exception):
    """The key cannot be created; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """What was asked for; `id` None takes the first free one of k1, k2, ..."""

    namespace: str
    tenant: str
    id: str | None
    expires_at: str | None


def register(subparsers: "Subparsers") -> None:
    """Add `lorafleet key create`."""
    key = subparsers.add_parser("key", help="manage tenants' API keys")
    actions = key.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="add an API key to a Tenant and print it once")
    create.add_argument("--tenant", required=True, metavar="NAME", help="the Tenant")
    create.add_argument("-n", "--namespace", required=True, help="the Tenant's namespace")
    create.add_argument("--id", help="the entry's id (default: the first free one of k1, k2, ...)")
    create.add_argument("--expires", type=_duration, metavar="720h", help="how long it is valid (default: for ever)")
    create.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the pod's own, ~/.kube/config")
    create.add_argument("--context", help="the kubeconfig's context")
    create.set_defaults(run=_run_create)


async def create_key(api: KubeApi, wanted: NewKey) -> str:
    """Add one entry to the Tenant's `apiKeys` and return the key. Raises KeyRefusedError or KubeError."""
    path = TENANTS.path(wanted.namespace, wanted.tenant)
    for _ in range(ATTEMPTS):
        tenant = await _read_tenant(api, wanted)
        identifier = _choose_id(wanted, {each["id"] for each in tenant["spec"].get("apiKeys", ())})
        name = KeyName(wanted.namespace, wanted.tenant, identifier)
        key = format_key(name, secrets.token_bytes(SECRET_BYTES))
        try:
            manager = MANAGER_PREFIX + identifier
            await api.apply(path, _entry(tenant, name, key, wanted.expires_at), manager=manager)
        except ApiError as error:
            if error.code != 409:
                raise
            continue  # somebody changed the Tenant since it was read
        return key
    raise KeyRefusedError(f"Tenant {wanted.namespace}/{wanted.tenant} keeps changing; try again")


async def _read_tenant(api: KubeApi, wanted: NewKey) -> dict[str, Any]:
    try:
        return await api.get(TENANTS.path(wanted.namespace, wanted.tenant))
    except ApiError as error:
        if error.code != 404:
            raise
        raise KeyRefusedError(f"there is no Tenant {wanted.namespace}/{wanted.tenant}") from error


def _choose_id(wanted: NewKey, taken: Collection[str]) -> str:
    if wanted.id is None:
        return next(each for each in (f"k{number}" for number in count(1)) if each not in taken)
    if wanted.id in taken:
        raise KeyRefusedError(
            f"Tenant {wanted.namespace}/{wanted.tenant} already has a key {wanted.id!r}; choose another --id"
        )
    return wanted.id


def _entry(tenant: dict[str, Any], name: KeyName, key: str, expires_at: str | None) -> dict[str, Any]:
    entry = {"id": name.id, "sha256": key_digest(key)}
    if expires_at is not None:
        entry["expiresAt"] = expires_at
    metadata = {
        "namespace": name.namespace,
        "name": name.tenant,
        "resourceVersion": tenant["metadata"]["resourceVersion"],  # refused if the id was taken meanwhile
    }
    return {"apiVersion": API_VERSION, "kind": "Tenant", "metadata": metadata, "spec": {"apiKeys": [entry]}}


def _run_create(arguments: argparse.Namespace) -> int:
    expires_at = None
    if arguments.expires is not None:
        expires_at = (datetime.now(UTC) + arguments.expires).strftime("%Y-%m-%dT%H:%M:%SZ")
    wanted = NewKey(arguments.namespace, arguments.tenant, arguments.id, expires_at)
    try:
        key = asyncio.run(_connect_and_create(arguments, wanted))
    except (KeyRefusedError, KubeError) as error:
        print(f"lorafleet: {error}", file=sys.stderr)
        return 1
    print(key)
    return 0


async def _connect_and_create(arguments: argparse.Namespace, wanted: NewKey) -> str:
    async with connect(await load_access(arguments.kubeconfig, arguments.context)) as api:
        return await create_key(api, wanted)


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"([1-9]\d*)([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration like 30m, 720h or 90d")
    return timedelta(**{_UNITS[match.group(2)]: int(match.group(1))})
