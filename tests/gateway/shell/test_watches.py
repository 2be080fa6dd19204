"""The routing table read from a real API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from e2e.cluster.apiserver import ApiServer
from lorafleet_contracts.keys import KeyName, format_key, key_digest
from lorafleet_contracts.names import API_VERSION, ENGINE_CA, ENGINE_CA_KEY, LABEL_POOL, LABEL_SET, SERVING_TLS_PORT
from lorafleet_gateway.core.auth import authenticate
from lorafleet_gateway.core.records import Replica
from lorafleet_gateway.core.rejections import Rejection
from lorafleet_gateway.core.table import SetKey, Table
from lorafleet_gateway.shell.watches import ADAPTERS, POOLS, TENANTS, Watches
from lorafleet_kube.access import load_access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_kube.paths import CONFIG_MAPS, ENDPOINT_SLICES, NAMESPACES, Kind
from tests.support.crds import install_crds

pytestmark = pytest.mark.apiserver

DIGEST = "sha256:" + "a" * 64


@dataclass
class World:
    """A namespace of its own on the API server, and the table as the gateway has it."""

    api: KubeApi
    team: str
    tables: list[Table]
    roots: list[str | None]

    async def apply(self, kind: Kind, name: str, body: dict[str, Any], subresource: str | None = None) -> None:
        names = {POOLS: "LoraPool", ADAPTERS: "LoraAdapter", TENANTS: "Tenant", ENDPOINT_SLICES: "EndpointSlice"}
        version = f"{kind.group}/{kind.version}"
        metadata = {"name": name, "namespace": self.team, **body.pop("metadata", {})}
        path = kind.path(self.team, name, subresource)
        typed = {"apiVersion": version, "kind": names[kind], "metadata": metadata, **body}
        await self.api.apply(path, typed, manager=f"tests-{subresource}", force=True)

    async def label(self, name: str, **labels: str) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        await self.api.apply(NAMESPACES.path(name=name), body, manager="tests", force=True)

    async def until(self, holds: Callable[[Table], bool], seconds: float = 5) -> None:
        async with asyncio.timeout(seconds):
            while not (self.tables and holds(self.tables[-1])):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def meaning(self, table: Table, namespace: str, model: str) -> str | None:
        """The digest behind a name, "" for none yet, None for a 404."""
        tenant = table.tenants[namespace, "caller"]
        try:
            version = table.resolve(tenant, model).version
        except Rejection:
            return None
        return version.partition("@")[2] if version else ""


@pytest.fixture
async def world(apiserver: ApiServer) -> AsyncIterator[World]:
    async with connect(await load_access(str(apiserver.kubeconfig))) as api:
        await install_crds(api)
        made = World(api, f"team-{uuid4().hex[:8]}", [], [])
        await made.label(made.team)
        task = asyncio.create_task(Watches(api, made.team, made.tables.append, made.roots.append).run())
        yield made
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def fill(world: World) -> None:
    pool = {"baseModel": {"name": "smollm2", "source": {"uri": "http://assets/base"}}}
    await world.apply(POOLS, "smol", {"spec": {**pool, "allowedNamespaces": {"from": "All"}}})
    source = {"uri": "http://assets/pirate"}
    await world.apply(ADAPTERS, "pirate", {"spec": {"poolRef": {"name": "smol"}, "source": source, "model": "p/1"}})
    key = format_key(KeyName(world.team, "caller", "k1"), b"k" * 32)
    keys = [{"id": "k1", "sha256": key_digest(key), "expiresAt": "2100-01-01T00:00:00Z"}]
    tenant = {"poolRef": {"name": "smol"}, "adapters": {"selector": {}, "base": True}, "apiKeys": keys}
    await world.apply(TENANTS, "caller", {"spec": tenant})


def knows(world: World, model: str, expected: str | None, namespace: str | None = None) -> Callable[[Table], bool]:
    caller = namespace or world.team

    def holds(table: Table) -> bool:
        return (caller, "caller") in table.tenants and world.meaning(table, caller, model) == expected

    return holds


async def test_an_adapter_from_creation_to_deletion(world: World) -> None:
    await fill(world)
    await world.until(knows(world, "p/1", ""))
    status = {"digest": DIGEST, "conditions": []}
    await world.apply(ADAPTERS, "pirate", {"status": status}, "status")
    await world.until(knows(world, "p/1", DIGEST))
    suspended = {"poolRef": {"name": "smol"}, "source": {"uri": "http://assets/pirate"}, "suspend": True}
    await world.apply(ADAPTERS, "pirate", {"spec": suspended | {"model": "p/1"}})
    await world.until(knows(world, "p/1", ""))
    await world.api.request("DELETE", ADAPTERS.path(world.team, "pirate"))
    await world.until(knows(world, "p/1", None))


async def test_a_key_in_the_spec_opens_the_door(world: World) -> None:
    await fill(world)
    await world.until(knows(world, "smollm2", ""))
    key = format_key(KeyName(world.team, "caller", "k1"), b"k" * 32)
    table = world.tables[-1]
    assert authenticate(f"Bearer {key}", table.tenants, 1.8e9).key == (world.team, "caller")
    with pytest.raises(Rejection):
        authenticate(f"Bearer {key}", table.tenants, 4.2e9)  # after 2100


async def test_sharing_follows_the_labels_of_namespaces(world: World) -> None:
    await fill(world)
    guest = f"{world.team}-guest"
    await world.label(guest)
    shared = {"namespaceSelector": {"matchLabels": {"friend": "yes"}}}
    spec = {"poolRef": {"name": "smol"}, "source": {"uri": "http://assets/x"}, "sharedWith": shared}
    await world.apply(ADAPTERS, "common", {"spec": spec})
    names = {"names": [f"{world.team}/common"]}
    tenant = {
        "apiVersion": API_VERSION,
        "kind": "Tenant",
        "metadata": {"namespace": guest, "name": "caller"},
        "spec": {"poolRef": {"name": "smol", "namespace": world.team}, "adapters": names},
    }
    await world.api.apply(TENANTS.path(guest, "caller"), tenant, manager="tests")
    await world.until(knows(world, "common", None, guest))
    await world.label(guest, friend="yes")
    await world.until(knows(world, "common", "", guest))
    await world.label(guest, friend="no")
    await world.until(knows(world, "common", None, guest))


async def test_the_roots_are_read_from_their_config_map_alone(world: World) -> None:
    await world.until(lambda _: True)
    for name, pem in (("other", "theirs"), (ENGINE_CA, "first"), (ENGINE_CA, "second")):
        found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {ENGINE_CA_KEY: pem}}
        await world.api.apply(CONFIG_MAPS.path(world.team, name), found, manager="tests")
    await world.api.request("DELETE", CONFIG_MAPS.path(world.team, ENGINE_CA))
    async with asyncio.timeout(10):
        while len(world.roots) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert world.roots == ["first", "second", None]


async def test_endpoints_come_from_labelled_slices(world: World) -> None:
    await fill(world)
    labels = {LABEL_POOL: "smol", LABEL_SET: "shared"}

    def endpoint(last: int, **conditions: bool) -> dict[str, Any]:
        return {"addresses": [f"10.1.0.{last}"], "conditions": conditions}

    slice_body = {
        "addressType": "IPv4",
        "ports": [{"name": "serving", "port": 8000}, {"name": "state", "port": 8001}],
        "endpoints": [
            endpoint(1, ready=True, serving=True),
            endpoint(2, ready=False, serving=False),
            endpoint(3, ready=False, serving=True, terminating=True),
        ],
    }
    await world.apply(ENDPOINT_SLICES, "engines", {"metadata": {"labels": labels}, **slice_body})
    await world.apply(ENDPOINT_SLICES, "others", {**slice_body, "metadata": {"labels": {"app": "web"}}})
    ports = [*slice_body["ports"], {"name": SERVING_TLS_PORT, "port": 8000}]
    marked = {**slice_body, "ports": ports, "endpoints": [endpoint(4, ready=True, serving=True)]}
    await world.apply(ENDPOINT_SLICES, "marked", {"metadata": {"labels": labels}, **marked})
    pool = (world.team, "smol")
    tls = Replica("10.1.0.4:8000", "10.1.0.4:8001", tls=True)
    one, two = (Replica(f"10.1.0.{last}:8000", f"10.1.0.{last}:8001") for last in (1, 2))
    await world.until(lambda table: table.sets.get(SetKey(pool, "shared")) == (one, tls))
    assert {replica for replica, owner in world.tables[-1].replicas.items() if owner == pool} == {one, two, tls}
