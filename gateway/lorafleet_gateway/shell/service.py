"""Wires the picker together and runs it until told to stop. Called by `__main__`; the one room that knows all parts."""

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from aiohttp import web

from lorafleet_contracts.admin import PortName
from lorafleet_gateway.core.records import ObjectKey
from lorafleet_gateway.core.table import Table
from lorafleet_gateway.settings import Settings
from lorafleet_gateway.shell.access_log import AccessLog
from lorafleet_gateway.shell.cold_queue import ColdLimits, ColdQueue
from lorafleet_gateway.shell.engine_roots import EngineRoots
from lorafleet_gateway.shell.envoy_files import EnvoyFiles
from lorafleet_gateway.shell.grpc_port import GrpcPort, serve_grpc
from lorafleet_gateway.shell.health import Probes, build_health_app
from lorafleet_gateway.shell.limits.limiter import Limiter, WhenDown
from lorafleet_gateway.shell.limits.shared_store import SharedStore
from lorafleet_gateway.shell.metrics import Metrics
from lorafleet_gateway.shell.picker import Desk, Picker
from lorafleet_gateway.shell.port_keys import PortKeys
from lorafleet_gateway.shell.states import StatePolls
from lorafleet_gateway.shell.watches import Watches
from lorafleet_kube.access import default_namespace, load_access
from lorafleet_kube.api import connect

ENVELOPE_BYTES = 1 << 16
"""Room in a gRPC message beside the request body."""
LOG_BYTES = 1 << 20
"""The largest message of Envoy's access log."""
GRACE_SECONDS = 5.0

log = logging.getLogger(__name__)


class Service:
    """The running gateway: a new table goes to Envoy's files, the state polls and the picker, in this order."""

    def __init__(self, settings: Settings, http: aiohttp.ClientSession) -> None:
        self._files = EnvoyFiles(settings.config_dir)
        self._keys = PortKeys(settings.keys_dir)
        self.roots = EngineRoots(self._files.write_roots)
        self.metrics = Metrics()
        self.cold = ColdQueue(ColdLimits(settings.cold_seconds))
        store = SharedStore(settings.limits_store) if settings.limits_store else None
        self.limiter = Limiter(settings.name, store, WhenDown(settings.limits_when_down), self.metrics)
        self.polls = StatePolls(http, self._state_token, self.roots.context, self.cold.arrived, self.limiter)
        self.picker = Picker(
            Desk(settings.name, settings.max_body, self.polls, self.cold, self._keys, self.limiter, self.metrics)
        )
        self._pool_uids: dict[ObjectKey, str] = {}

    def use(self, table: Table) -> None:
        """Serve from `table` from now on."""
        if self.picker.table is None:
            log.info("synced: %d pools, %d tenants", len(table.pools), len(table.tenants))
            gc.collect()
            gc.freeze()  # what is there by now stays; looking through it for garbage takes 30 ms each time
        self._pool_uids = {key: pool.uid for key, pool in table.pools.items()}
        self._files.write(table.hosts())
        self.limiter.use(table.tenants)
        self.polls.follow(table.replicas)
        self.picker.table = table
        self.cold.wake_all()

    def count(self) -> None:
        """Bring the gauges of replicas and waiting requests up to date."""
        total = len(self.picker.table.replicas) if self.picker.table else 0
        known = len(self.polls.fleet.views)
        self.metrics.replicas.labels("known").set(known)
        self.metrics.replicas.labels("unknown").set(total - known)
        self.metrics.cold_waiting.set(self.cold.waiting)
        self.metrics.open_requests.set(self.limiter.open_requests)

    def _state_token(self, pool: ObjectKey) -> str:
        return self._keys.token(PortName.STATE, self._pool_uids[pool])


async def serve(settings: Settings) -> None:
    """Run the picker until SIGTERM or SIGINT. Raises KubeError when there is no way to reach an API server."""
    access = await load_access()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        api = await stack.enter_async_context(connect(access))
        service = Service(settings, http)
        stack.push_async_callback(service.limiter.close)
        stack.push_async_callback(service.polls.stop)
        watches = Watches(api, default_namespace(), service.use, service.roots.use)

        def refresh() -> None:
            service.count()
            service.metrics.table_age.set(watches.seconds_since_contact())

        probes = Probes(lambda: service.picker.table is not None, refresh, service.metrics)
        await stack.enter_async_context(_health_port(settings, probes))
        for port in _grpc_ports(settings, service):
            await stack.enter_async_context(serve_grpc(port))
        running = [asyncio.create_task(watches.run()), asyncio.create_task(service.limiter.run())]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            if task.done():
                task.result()  # raises what ended it
            task.cancel()


@asynccontextmanager
async def _health_port(settings: Settings, probes: Probes) -> AsyncIterator[None]:
    runner = web.AppRunner(build_health_app(probes), access_log=None, shutdown_timeout=GRACE_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.health_host, settings.health_port).start()
        yield
    finally:
        await runner.cleanup()


def _grpc_ports(settings: Settings, service: Service) -> tuple[GrpcPort, GrpcPort]:
    """Where Envoy tells of ends, which outlives where it asks."""
    log_streams_end = 0.0  # Envoy's never do by themselves
    access_log = AccessLog(service.limiter.end)
    largest = settings.max_body + ENVELOPE_BYTES
    return (
        GrpcPort(settings.log_port, access_log.process, LOG_BYTES, log_streams_end),
        # on loopback only: whoever may call it with a key sees the pool's serving token
        GrpcPort(settings.picker_port, service.picker.process, largest, GRACE_SECONDS, service.limiter.end_all),
    )
