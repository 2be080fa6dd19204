"""Watches all that the routing table is made of, and who signs for engines. Called by shell/service.py.

It builds, and decides nothing.

The last table stays in use while the API server is away; `seconds_since_contact` says for how long.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NoReturn

from lorafleet_contracts.names import ENGINE_CA, GROUP, LABEL_POOL, VERSION
from lorafleet_gateway.core.table import Records, Table, build_table
from lorafleet_gateway.shell.projections import (
    read_adapter,
    read_namespace,
    read_pool,
    read_roots,
    read_slice,
    read_tenant,
)
from lorafleet_kube.api import KubeApi
from lorafleet_kube.paths import CONFIG_MAPS, ENDPOINT_SLICES, NAMESPACES, Kind
from lorafleet_kube.reflector import Change, Collection, Reflector

DEBOUNCE_SECONDS = 0.15
"""Changes that come together make one new table; a burst of them leaves most of the time to requests."""

POOLS = Kind(GROUP, VERSION, "lorapools")
ADAPTERS = Kind(GROUP, VERSION, "loraadapters")
TENANTS = Kind(GROUP, VERSION, "tenants")


class Watches:
    """Five reflectors and the table made of their records; `on_table` is called with each new one after the sync.

    A sixth tells `on_roots` of the roots in `namespace`, which need not be there yet; the first table comes after them.
    """

    def __init__(
        self, api: KubeApi, namespace: str, on_table: Callable[[Table], None], on_roots: Callable[[str | None], None]
    ) -> None:
        self._on_table = on_table
        self._changed = asyncio.Event()
        self._pools = Reflector(api, Collection(POOLS.path()), read_pool, self._wake)
        self._adapters = Reflector(api, Collection(ADAPTERS.path()), read_adapter, self._wake)
        self._tenants = Reflector(api, Collection(TENANTS.path()), read_tenant, self._wake)
        self._namespaces = Reflector(api, Collection(NAMESPACES.path()), read_namespace, self._wake)
        self._slices = Reflector(
            api, Collection(ENDPOINT_SLICES.path(), label_selector=LABEL_POOL), read_slice, self._wake
        )
        roots = Collection(CONFIG_MAPS.path(namespace), field_selector=f"metadata.name={ENGINE_CA}")
        self._roots = Reflector(api, roots, read_roots, lambda change: on_roots(change.new))

    async def run(self) -> NoReturn:
        """Watch for ever. Cancel to stop."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors():
                group.create_task(reflector.run())
            for reflector in self._reflectors():
                await reflector.synced.wait()
            self._changed.set()
            while True:
                await self._changed.wait()
                await asyncio.sleep(DEBOUNCE_SECONDS)
                self._changed.clear()
                self._on_table(build_table(self._records()))

    def seconds_since_contact(self) -> float:
        """The longest silence among the watches, in seconds; infinite before the first contact."""
        now = time.monotonic()
        contacts = [reflector.contacted_at for reflector in self._reflectors()]
        return max(float("inf") if at is None else now - at for at in contacts)

    def _records(self) -> Records:
        return Records(
            pools=self._pools.records,
            adapters=self._adapters.records,
            tenants=self._tenants.records,
            namespaces={name: dict(labels) for (_, name), labels in self._namespaces.records.items()},
            slices=self._slices.records,
        )

    def _reflectors(self) -> tuple[Reflector[Any], ...]:
        return self._pools, self._adapters, self._tenants, self._namespaces, self._slices, self._roots

    def _wake(self, _: Change[Any]) -> None:
        self._changed.set()
