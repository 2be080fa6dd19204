"""The leader's part in rotating the port keys: a look every few seconds, a period, and what it tells of it.

Called by main.py with the Secret that it has just read; the steps themselves are rotation.py's. Never logs a key.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

import aiohttp

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.names import FIELD_MANAGER, PORT_KEYS_SECRET, EnginePort
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import KubeError
from lorafleet_operator.core.port_keys import EngineUses, Period, PortKeys, Stage
from lorafleet_operator.shell.credentials import read_port_keys
from lorafleet_operator.shell.engines import CONNECT_SECONDS, engine_url
from lorafleet_operator.shell.events import Event, involved
from lorafleet_operator.shell.kinds import EVENTS
from lorafleet_operator.shell.lease import Lease
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.records import PodRecord, PoolKey
from lorafleet_operator.shell.rotation import WAITS_FOR, Ask, Rotation, ask_uses, name_some, rotated_at, started_at
from lorafleet_operator.shell.trust import Trust

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
ASKED_AT_ONCE = 32
PATIENCE_SECONDS = 900.0
"""How long a step may wait for engines before that is told of."""


class Rotator:
    """Begins a rotation when the keys are old enough, carries on any that was begun; without a period only measures."""

    def __init__(
        self,
        api: KubeApi,
        lease: Lease,
        ask: Ask,
        period: Period,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._lease = lease
        self._period = period
        self._metrics = metrics
        self._clock = clock
        self._rotation = Rotation(api, ask, period.quiet, check=lease.check)
        self._stage, self._since = Stage.RESTING, clock()

    async def look(self, secret: dict[str, Any]) -> None:
        """One look. Raises NotLeadingError or KubeError."""
        now, stage = self._clock(), read_port_keys(secret).stage
        self._metrics.port_keys_due.set(self._due(secret, stage))
        if not self._period.calls_for(stage, rotated_at(secret), now):
            return
        if stage is not self._stage:
            self._stage, self._since = stage, now
        look = await self._rotation.look(secret)
        if look.waiting and now > self._since + PATIENCE_SECONDS:
            self._since = now
            await self._tell(secret, "Warning", "PortKeysWait", f"{WAITS_FOR[stage]}: {name_some(look.waiting)}")
        if look.reached is not None:
            log.info("keys of the engines' ports: %s", look.reached.value)
        if look.reached is Stage.RESTING:
            await self._tell(secret, "Normal", "PortKeysRotated", "the keys of the engines' ports were rotated")

    def _due(self, secret: dict[str, Any], stage: Stage) -> float:
        """From when on the keys are to be rotated: since when they are, or when it will be time; 0 for never."""
        if stage is not Stage.RESTING:
            return started_at(secret)
        return rotated_at(secret) + self._period.every if self._period.every is not None else 0.0

    async def _tell(
        self, secret: dict[str, Any], severity: Literal["Warning", "Normal"], reason: str, message: str
    ) -> None:
        """An event beside the Secret, and a line in the log. Events are a courtesy."""
        log.log(logging.WARNING if severity == "Warning" else logging.INFO, "%s: %s", reason, message)
        about = involved({"apiVersion": "v1", "kind": "Secret", **secret})
        body = Event(about, reason, message, FIELD_MANAGER, severity).body(generateName=f"{PORT_KEYS_SECRET}-")
        self._lease.check()
        try:
            await self._api.request("POST", EVENTS.path(about["namespace"]), body=body)
        except KubeError as error:
            log.warning("no event for %s: %s", PORT_KEYS_SECRET, error)


class EngineAsker:
    """Asks engines which tokens they accept, and when those were used. `pods` are all engines, `uid_of` is a pool's."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        trust: Trust,
        pods: Callable[[], list[PodRecord]],
        uid_of: Callable[[PoolKey], str | None],
    ) -> None:
        self._session = session
        self._trust = trust
        self._pods = pods
        self._uid_of = uid_of

    async def ask(self, keys: PortKeys) -> list[EngineUses]:
        """What all ready engines say, asked with the token in use."""
        free = asyncio.Semaphore(ASKED_AT_ONCE)
        asked = []
        for pod in self._pods():
            uid = self._uid_of(pod.pool)
            if pod.ready and uid is not None:
                asked.append(self._ask(free, pod, uid, keys))
        return list(await asyncio.gather(*asked))

    async def _ask(self, free: asyncio.Semaphore, pod: PodRecord, pool_uid: str, keys: PortKeys) -> EngineUses:
        token = keys.tokens_for(pool_uid).by_port[PortName.STATE.value][0]
        url = engine_url(pod.ip, EnginePort.STATE, "", tls=bool(pod.server_name))
        limits = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        uses = None
        try:
            async with free:
                uses = await ask_uses(self._session, url, token, timeout=limits, **self._trust.options(pod.server_name))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.debug("metrics of %s: %r", pod.name, error)
        return EngineUses(f"{pod.pool[0]}/{pod.name}", pool_uid, uses)
