"""Wires the operator and runs it: warm up, wait for the Lease, lead, and end with the Lease. Called by __main__ only.

Nothing survives the loss of the Lease: the process exits non-zero at once and its container starts again as a standby.
"""

import asyncio
import gc
import logging
import os
import signal
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import aiohttp
import kopf

from lorafleet_kube.access import Access, load_access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_kube.errors import KubeError
from lorafleet_kube.logs import set_up_logs
from lorafleet_operator.core.port_keys import PortKeys
from lorafleet_operator.errors import SettingsError
from lorafleet_operator.handlers.lifecycle import build_registry
from lorafleet_operator.handlers.parts import Parts
from lorafleet_operator.handlers.wakes import Wakes
from lorafleet_operator.settings import Settings, read_settings
from lorafleet_operator.shell.access import connection_fields
from lorafleet_operator.shell.admin import EngineAdmin
from lorafleet_operator.shell.authority import EngineAuthority, Home
from lorafleet_operator.shell.cluster import Cluster
from lorafleet_operator.shell.credentials import PortKeyStore, read_port_keys
from lorafleet_operator.shell.engines import EngineLinks
from lorafleet_operator.shell.execute import Executor
from lorafleet_operator.shell.health import serve_health
from lorafleet_operator.shell.keeper import LeaseKeeper
from lorafleet_operator.shell.lease import Lease
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.observe import Observer
from lorafleet_operator.shell.ownership import Installation
from lorafleet_operator.shell.rotator import EngineAsker, Rotator
from lorafleet_operator.shell.source_secrets import SourceSecrets
from lorafleet_operator.shell.statuses import StatusDesk
from lorafleet_operator.shell.trust import Trust
from lorafleet_operator.shell.watches import Watches

log = logging.getLogger(__name__)

STOPPED, LOST, UNUSABLE = 0, 3, 2
KEYS_SECONDS = 5.0
STOP_SECONDS = 10.0
COLLECTIONS = (50_000, 20, 20)
"""A plan of many adapters makes hundreds of thousands of objects that go without the collector's help; by default it
takes a quarter of the plan's time."""


@dataclass(frozen=True, slots=True)
class _Process:
    """What exists from the start of the process to its end."""

    settings: Settings
    access: Access
    api: KubeApi
    session: aiohttp.ClientSession
    lease: Lease
    metrics: Metrics
    wakes: Wakes
    watches: Watches
    watching: asyncio.Task[None]


def main() -> int:
    """Run until told to stop; returns the exit status."""
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        logging.basicConfig()
        log.error("%s", error)
        return UNUSABLE
    set_up_logs("operator", settings.log_level)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line an event otherwise
    gc.freeze()  # what the imports have made stays: no collection need walk it
    gc.set_threshold(*COLLECTIONS)
    return asyncio.run(run_operator(settings))


async def run_operator(settings: Settings) -> int:
    """Run one life of the operator in this event loop; returns the exit status."""
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        process = await _warm_up(stack, settings)
        _on_signals(stop)
        await _first_of(process.watches.wait_synced(), stop.wait(), process.watching)
        if not stop.is_set() and not process.watching.done():
            await _first_of(process.lease.acquire(), stop.wait(), process.watching)
        if stop.is_set() or process.watching.done():
            await process.lease.release()
            return STOPPED if stop.is_set() else LOST
        status = await _lead(process, stop)
        if status != STOPPED:
            _give_up()
        return status


async def _warm_up(stack: AsyncExitStack, settings: Settings) -> _Process:
    """Open everything that a standby has: the API server, the watches, the health endpoint."""
    access = await load_access()
    api = await stack.enter_async_context(connect(access))
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    metrics, wakes = Metrics(), Wakes()
    watches = Watches(api, settings.watch_namespaces, wakes)
    await stack.enter_async_context(serve_health(settings.health_port, lambda: watches.synced, metrics))
    watching = asyncio.create_task(watches.run(), name="watches")
    stack.push_async_callback(_cancel, watching)
    identity = f"{settings.pod_name}_{uuid.uuid4()}"
    installation = Installation(api, settings.namespace, settings.deployment)
    lease = Lease(api, (settings.namespace, settings.lease_name), identity, installation.owners)
    await lease.look()
    return _Process(settings, access, api, session, lease, metrics, wakes, watches, watching)


async def _lead(process: _Process, stop: asyncio.Event) -> int:
    """Lead until told to stop, until the Lease is lost or until something breaks."""
    keeper = LeaseKeeper(process.access, process.lease, _give_up)
    keeper.start()
    installation = Installation(process.api, process.settings.namespace, process.settings.deployment)
    store = PortKeyStore(process.api, process.lease, process.settings.namespace, installation.owners)
    trust, settings = Trust(), process.settings
    asker = EngineAsker(process.session, trust, process.watches.pods, process.watches.pool_uid)
    rotator = Rotator(process.api, process.lease, asker.ask, settings.rotation, process.metrics)
    keys = _Keys(store, rotator, process.wakes.all_touched)
    home = Home(settings.namespace, installation.owners, settings.makes_authority, settings.gateway_certificate)
    cluster = Cluster(process.api, process.lease)
    authority = EngineAuthority((process.api, cluster), home, trust, process.metrics)
    parts = _wire(process, keys, authority, trust)
    # Born before kopf starts: at its end kopf cancels every task that is younger than itself.
    refreshing = asyncio.create_task(keys.run(), name="port keys")
    certifying = asyncio.create_task(
        authority.run(parts.observer.shown_certificates, process.wakes.all_touched), name="certificates"
    )
    for task in (refreshing, certifying):
        task.add_done_callback(lambda ended: _note_end(ended, process.wakes))
    try:
        for loaded in (keys.loaded, authority.loaded):
            await _first_of(loaded.wait(), refreshing, certifying, stop.wait())
        if not (keys.loaded.is_set() and authority.loaded.is_set()):
            return STOPPED if stop.is_set() else LOST
        process.metrics.leading.set(1)
        return await _run_kopf(process, parts, stop)
    finally:
        process.metrics.leading.set(0)
        await keeper.stop(process.api)
        await process.lease.release()
        await _cancel(refreshing)
        await _cancel(certifying)


async def _run_kopf(process: _Process, parts: Parts, stop: asyncio.Event) -> int:
    settings = process.settings

    async def login() -> dict[str, object]:
        return await connection_fields(process.access)

    registry = build_registry(process.wakes, parts, login)
    ending, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(
        kopf.operator(
            registry=registry,
            standalone=True,
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            stop_flag=ending,
            ready_flag=ready,
        ),
        name="kopf",
    )
    await _first_of(ready.wait(), running)
    _on_signals(stop)  # kopf has put its own handlers in place
    await _first_of(running, stop.wait(), process.wakes.broken.wait(), process.watching)
    status = STOPPED if stop.is_set() else LOST
    log.info("ending: %s", "told to" if stop.is_set() else "kopf, the watches or a task ended")
    ending.set()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            await asyncio.wait([running])
    return status


def _wire(process: _Process, keys: "_Keys", authority: EngineAuthority, trust: Trust) -> Parts:
    """The one place where the leader's parts meet."""
    settings, watches, wakes = process.settings, process.watches, process.wakes
    links = EngineLinks(process.session, trust, lambda pool: observer.tokens(pool, keys.current()), wakes.pool_touched)
    cluster = Cluster(process.api, process.lease)
    observer = Observer(watches, links, settings.engine, cluster_wide=not settings.watch_namespaces)
    return Parts(
        watches=watches,
        links=links,
        observer=observer,
        executor=Executor(cluster, process.metrics),
        desk=StatusDesk(cluster, watches, process.metrics),
        admin=EngineAdmin(process.session, process.lease, trust),
        secrets=SourceSecrets(process.api),
        keys=keys.current,
        tls_of=authority.tls_of,
        metrics=process.metrics,
    )


class _Keys:
    """The port keys, read again now and then: a rotation is noticed, and carried on or begun."""

    def __init__(self, store: PortKeyStore, rotator: Rotator, on_change: Callable[[], None]) -> None:
        self._store = store
        self._rotator = rotator
        self._on_change = on_change
        self._keys = PortKeys({})
        self.loaded = asyncio.Event()

    def current(self) -> PortKeys:
        """The keys as they were read last."""
        return self._keys

    async def run(self) -> None:
        """Read for ever; cancel to stop."""
        while True:
            try:
                secret = await self._store.load()
                found = read_port_keys(secret)
                if found != self._keys:
                    self._keys = found
                    self._on_change()
                self.loaded.set()
                await self._rotator.look(secret)
            except KubeError as error:
                log.warning("the port keys could not be read or rotated: %s", error)
            await asyncio.sleep(KEYS_SECONDS if self.loaded.is_set() else 1.0)


def _note_end(task: "asyncio.Task[None]", wakes: Wakes) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("the task of the %s broke", task.get_name(), exc_info=error)
        wakes.broken.set()


def _give_up() -> NoReturn:
    """End this process this moment: another one may lead, and what runs here may take its time to be cancelled."""
    logging.shutdown()
    os._exit(LOST)


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def _first_of(*waited: "Coroutine[Any, Any, Any] | asyncio.Task[Any]") -> None:
    """Return when the first ends; coroutines that did not are cancelled, tasks are left alone."""
    tasks = [each if isinstance(each, asyncio.Task) else asyncio.create_task(each) for each in waited]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, each in zip(tasks, waited, strict=True):
            if task is not each:
                await _cancel(task)


async def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
