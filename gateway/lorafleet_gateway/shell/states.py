"""Long-polls the state port of every engine replica and keeps the fleet's view. Called by shell/service.py.

A replica whose state port does not answer loses its view: it is unknown, not gone (EndpointSlices say what is gone).
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Container, Mapping
from typing import NoReturn

import aiohttp
from pydantic import ValidationError

from lorafleet_contracts.admin import STATE_PATH, GatewayState
from lorafleet_contracts.names import engine_server_name
from lorafleet_gateway.core.records import ObjectKey, Replica
from lorafleet_gateway.core.residency import EngineView, fold
from lorafleet_gateway.core.routing import Fleet
from lorafleet_gateway.shell.limits.limiter import Limiter

CONNECT_SECONDS = 2.0
WAIT_SECONDS = 2
"""How long an engine holds the answer back when it has no news."""
SILENCE_SECONDS = 4.0
"""After which a replica that was held to be alive is unknown."""
PAUSE_SECONDS = 0.05
"""Between two answers of one engine, so that a busy one is not asked at every token."""
FIRST_DELAY_SECONDS = 0.2
MAX_DELAY_SECONDS = 2.0

log = logging.getLogger(__name__)


class StatePolls:
    """One task per replica; `token_of` gives the state token of a pool, by the pool's key, `trust` whom to believe.

    `on_versions` is called with what a replica holds whenever it said so; `usage` says whose usage it should tell, and
    is told. `fleet` is live: the picker reads it for each request and reports its picks by `picked`.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        token_of: Callable[[ObjectKey], str],
        trust: Callable[[], ssl.SSLContext],
        on_versions: Callable[[Container[str]], None],
        usage: Limiter,
    ) -> None:
        self._http = http
        self._on_versions = on_versions
        self._usage = usage
        self._token_of = token_of
        self._trust = trust
        self._tasks: dict[Replica, asyncio.Task[NoReturn]] = {}
        self._views: dict[Replica, EngineView] = {}
        self._recent: dict[Replica, int] = {}
        self._picks: dict[Replica, int] = {}
        self.fleet = Fleet(self._views, self._recent, self._picks)

    def follow(self, replicas: Mapping[Replica, ObjectKey]) -> None:
        """Poll exactly these replicas, each of the pool it maps to."""
        for gone in self._tasks.keys() - replicas.keys():
            self._tasks.pop(gone).cancel()
            for known in (self._views, self._recent, self._picks):
                known.pop(gone, None)
            self._usage.forget(gone)
        for new in replicas.keys() - self._tasks.keys():
            self._tasks[new] = asyncio.create_task(self._poll(new, replicas[new]), name=f"state {new.state}")

    def picked(self, replica: Replica) -> None:
        """Count a request that was sent to `replica`."""
        self._recent[replica] = self._recent.get(replica, 0) + 1
        self._picks[replica] = self._picks.get(replica, 0) + 1

    async def stop(self) -> None:
        """End all polls."""
        tasks = list(self._tasks.values())
        self.follow({})
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self, replica: Replica, pool: ObjectKey) -> NoReturn:
        delay = FIRST_DELAY_SECONDS
        while True:
            try:
                state = await self._ask(replica, pool)
            except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
                if self._views.pop(replica, None) is not None or delay == FIRST_DELAY_SECONDS:
                    log.warning("state of %s unknown: %s: %s", replica.state, type(error).__name__, error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_DELAY_SECONDS)
                continue
            delay = FIRST_DELAY_SECONDS
            view = self._views[replica] = fold(self._views.get(replica), state)
            self._on_versions(view.versions)
            self._usage.read_usage(replica, state)
            self._recent[replica] = 0
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self, replica: Replica, pool: ObjectKey) -> GatewayState:
        view = self._views.get(replica)
        params = {"since": "0", "usage": self._usage.usage_of}
        if view is not None:
            params |= {"since": str(view.seq), "boot": view.boot_id, "timeout": str(WAIT_SECONDS)}
        scheme = "https" if replica.tls else "http"
        async with self._http.get(
            f"{scheme}://{replica.state}{STATE_PATH}",
            ssl=self._trust() if replica.tls else True,
            server_hostname=engine_server_name(*pool) if replica.tls else None,
            params=params,
            headers={"authorization": f"Bearer {self._token_of(pool)}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
            raise_for_status=True,
        ) as response:
            return GatewayState.model_validate_json(await response.read())
