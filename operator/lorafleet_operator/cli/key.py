"""`lorafleet key`: a tenant's API keys are created, rotated, expired and listed. Called by the `lorafleet` command.

A key is shown once, when it is made; the Tenant keeps its hash. Several may be valid at a time, so that clients change
over one by one.
"""

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
from lorafleet_operator.cli.record import record

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

TENANTS = Kind(GROUP, VERSION, "tenants")
MANAGER_PREFIX = "lorafleet-key-"
"""Each entry has a field manager of its own: applying the next one must not take the last one back."""
ATTEMPTS = 5
GRACE = timedelta(hours=24)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class KeyRefusedError(Exception):
    """The keys cannot be changed like that; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """What was asked for; `id` None takes the first free one of k1, k2, ..."""

    namespace: str
    tenant: str
    id: str | None
    expires_at: str | None


def register(subparsers: "Subparsers") -> None:
    """Add `lorafleet key create|rotate|expire|list`."""
    key = subparsers.add_parser("key", help="manage tenants' API keys")
    actions = key.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="add an API key to a Tenant and print it once")
    create.add_argument("--id", help="the entry's id (default: the first free one of k1, k2, ...)")
    create.add_argument("--expires", type=_duration, metavar="720h", help="how long it is valid (default: for ever)")
    rotate = actions.add_parser("rotate", help="add an API key, print it once, and let an older one expire")
    rotate.add_argument("id", metavar="ID", help="the entry that the new one takes over from")
    rotate.add_argument(
        "--grace", type=_duration, metavar="24h", default=GRACE, help="how long the old one goes on (default: 24h)"
    )
    rotate.add_argument("--expires", type=_duration, metavar="720h", help="how long the new one is valid")
    expire = actions.add_parser("expire", help="let an API key expire: at once, or after a while")
    expire.add_argument("id", metavar="ID", help="the entry")
    expire.add_argument("--in", dest="within", type=_duration, metavar="1h", default=timedelta(), help="default: now")
    listing = actions.add_parser("list", help="print the ids of a Tenant's keys and when they expire")
    for parser, act in ((create, _create), (rotate, _rotate), (expire, _expire), (listing, _list)):
        parser.add_argument("--tenant", required=True, metavar="NAME", help="the Tenant")
        parser.add_argument("-n", "--namespace", required=True, help="the Tenant's namespace")
        parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the pod's own, ~/.kube/config")
        parser.add_argument("--context", help="the kubeconfig's context")
        parser.set_defaults(run=_run, act=act)


async def create_key(api: KubeApi, wanted: NewKey) -> str:
    """Add one entry to the Tenant's `apiKeys` and return the key. Raises KeyRefusedError or KubeError."""
    path = TENANTS.path(wanted.namespace, wanted.tenant)
    for _ in range(ATTEMPTS):
        tenant = await _read_tenant(api, wanted.namespace, wanted.tenant)
        identifier = _choose_id(wanted, _entries(tenant))
        name = KeyName(wanted.namespace, wanted.tenant, identifier)
        key = format_key(name, secrets.token_bytes(SECRET_BYTES))
        try:
            manager = MANAGER_PREFIX + identifier
            await api.apply(path, _entry(tenant, identifier, key_digest(key), wanted.expires_at), manager=manager)
        except ApiError as error:
            if error.code != 409:
                raise
            continue  # somebody changed the Tenant since it was read
        until = f"expires at {wanted.expires_at}" if wanted.expires_at else "does not expire"
        await record(api, tenant, "KeyCreated", f"made the API key {identifier}, which {until}")
        return key
    raise KeyRefusedError(f"Tenant {wanted.namespace}/{wanted.tenant} keeps changing; try again")


async def expire_key(api: KubeApi, name: KeyName, expires_at: str) -> None:
    """Let one entry of the Tenant's `apiKeys` expire at a time, not later than it would. Raises as create_key."""
    for _ in range(ATTEMPTS):
        tenant = await _read_tenant(api, name.namespace, name.tenant)
        entry = _find(tenant, name)
        if entry.get("expiresAt") and _moment(entry["expiresAt"]) <= _moment(expires_at):
            return
        body = _entry(tenant, name.id, entry["sha256"], expires_at)
        try:
            await api.apply(TENANTS.path(name.namespace, name.tenant), body, manager=MANAGER_PREFIX + name.id)
        except ApiError as error:
            if error.code != 409:
                raise
            if "conflict with" in str(error):
                raise KeyRefusedError(
                    f"key {name.id!r} of Tenant {name.namespace}/{name.tenant} was not made by `lorafleet key create`: "
                    f"set its expiresAt where it comes from ({error})"
                ) from error
            continue  # somebody changed the Tenant since it was read
        await record(api, tenant, "KeyExpires", f"let the API key {name.id} expire at {expires_at}")
        return
    raise KeyRefusedError(f"Tenant {name.namespace}/{name.tenant} keeps changing; try again")


async def _read_tenant(api: KubeApi, namespace: str, tenant: str) -> dict[str, Any]:
    try:
        return await api.get(TENANTS.path(namespace, tenant))
    except ApiError as error:
        if error.code != 404:
            raise
        raise KeyRefusedError(f"there is no Tenant {namespace}/{tenant}") from error


def _entries(tenant: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in tenant["spec"].get("apiKeys", ())}


def _find(tenant: dict[str, Any], name: KeyName) -> dict[str, Any]:
    entries = _entries(tenant)
    if name.id not in entries:
        known = ", ".join(entries) or "none"
        raise KeyRefusedError(f"Tenant {name.namespace}/{name.tenant} has no key {name.id!r}; it has: {known}")
    return entries[name.id]


def _choose_id(wanted: NewKey, taken: Collection[str]) -> str:
    if wanted.id is None:
        return next(each for each in (f"k{number}" for number in count(1)) if each not in taken)
    if wanted.id in taken:
        raise KeyRefusedError(
            f"Tenant {wanted.namespace}/{wanted.tenant} already has a key {wanted.id!r}; choose another --id"
        )
    return wanted.id


def _entry(tenant: dict[str, Any], identifier: str, sha256: str, expires_at: str | None) -> dict[str, Any]:
    entry = {"id": identifier, "sha256": sha256}
    if expires_at is not None:
        entry["expiresAt"] = expires_at
    metadata = {
        "namespace": tenant["metadata"]["namespace"],
        "name": tenant["metadata"]["name"],
        "resourceVersion": tenant["metadata"]["resourceVersion"],  # refused if the entry is another by now
    }
    return {"apiVersion": API_VERSION, "kind": "Tenant", "metadata": metadata, "spec": {"apiKeys": [entry]}}


def _run(arguments: argparse.Namespace) -> int:
    try:
        printed = asyncio.run(_connect_and_act(arguments))
    except (KeyRefusedError, KubeError) as error:
        print(f"lorafleet: {error}", file=sys.stderr)
        return 1
    if printed:
        print(printed)
    return 0


async def _connect_and_act(arguments: argparse.Namespace) -> str:
    async with connect(await load_access(arguments.kubeconfig, arguments.context)) as api:
        return str(await arguments.act(api, arguments))


async def _create(api: KubeApi, arguments: argparse.Namespace) -> str:
    expires_at = None if arguments.expires is None else _from_now(arguments.expires)
    return await create_key(api, NewKey(arguments.namespace, arguments.tenant, arguments.id, expires_at))


async def _rotate(api: KubeApi, arguments: argparse.Namespace) -> str:
    """The old one is looked at first, so that nothing is made when it is not there or not ours to change."""
    name = KeyName(arguments.namespace, arguments.tenant, arguments.id)
    await expire_key(api, name, _from_now(arguments.grace))
    expires_at = None if arguments.expires is None else _from_now(arguments.expires)
    return await create_key(api, NewKey(arguments.namespace, arguments.tenant, None, expires_at))


async def _expire(api: KubeApi, arguments: argparse.Namespace) -> str:
    name = KeyName(arguments.namespace, arguments.tenant, arguments.id)
    await expire_key(api, name, _from_now(arguments.within))
    return ""


async def _list(api: KubeApi, arguments: argparse.Namespace) -> str:
    tenant, now = await _read_tenant(api, arguments.namespace, arguments.tenant), datetime.now(UTC)
    lines = []
    for identifier, entry in _entries(tenant).items():
        expires = entry.get("expiresAt")
        over = expires is not None and _moment(expires) <= now
        lines.append(
            f"{identifier}\t{'expired' if over else 'expires'} {expires}" if expires else f"{identifier}\tlasts"
        )
    return "\n".join(lines)


def _from_now(duration: timedelta) -> str:
    return (datetime.now(UTC) + duration).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(timestamp: str) -> datetime:
    return datetime.fromisoformat(timestamp)


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"([1-9]\d*)([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration like 30m, 720h or 90d")
    return timedelta(**{_UNITS[match.group(2)]: int(match.group(1))})
