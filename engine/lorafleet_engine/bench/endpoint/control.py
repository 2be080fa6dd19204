"""An engine of ours beside its serving port: where adapters are (state port), eviction (admin port). Used by protocol
and open_run. Pure HTTP.

Only for endpoints of ours, and only where addresses and tokens are given; nothing here touches tenants' traffic.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypedDict

import aiohttp
from pydantic import ValidationError

from lorafleet_contracts.admin import STATE_PATH, VERSION_PATH, EngineState, Tier, VersionPhase
from lorafleet_contracts.names import split_version_key
from lorafleet_engine.bench.endpoint.asks import Ask
from lorafleet_engine.bench.endpoint.client import message_of
from lorafleet_engine.bench.endpoint.models import Model

POLL_S = 20.0
RETRY_S = 0.5
AT_ONCE = 16
"""Admin calls under way at a time."""
PATIENCE_S = 300.0
FIRST, AGAIN = "first request", "asked before"
"""Where an adapter is, as far as a client can tell without the state port."""


class ControlError(Exception):
    """The state or admin port does not answer, or refuses; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an engine, its token, and for one that speaks TLS who must answer."""

    url: str
    token: str
    tls: ssl.SSLContext | None = None
    server_name: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Of every call."""
        return {"authorization": f"Bearer {self.token}"}

    @property
    def proof(self) -> "_Proof":
        """What every call is made with beside that."""
        return {"ssl": self.tls or True, "server_hostname": self.server_name}


class _Proof(TypedDict):
    ssl: ssl.SSLContext | bool
    server_hostname: str | None


@dataclass(slots=True)
class Residency:
    """Where each version is, by the state port's news; `samples` are (seconds on the clock, waiting, in flight)."""

    session: aiohttp.ClientSession
    port: Port
    tiers: dict[str, Tier] = field(default_factory=dict)
    state: EngineState | None = None
    samples: list[tuple[float, int, int]] = field(default_factory=list)

    async def refresh(self, wait_s: float = 0.0) -> EngineState:
        """Take in the news. Raises ControlError."""
        known = self.state
        query: dict[str, str | float] = {"since": known.seq, "boot": known.boot_id, "timeout": wait_s} if known else {}
        try:
            timeout = aiohttp.ClientTimeout(total=wait_s + 30)
            url = self.port.url + STATE_PATH
            headers, proof = self.port.headers, self.port.proof
            async with self.session.get(url, params=query, headers=headers, timeout=timeout, **proof) as answer:
                if answer.status != HTTPStatus.OK:
                    raise ControlError(f"the state port {url} answered {answer.status}: check --state-token-file")
                state = EngineState.model_validate_json(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValidationError) as error:
            raise ControlError(f"the state port {self.port.url} cannot be read: {error}") from error
        self._take(state)
        return state

    async def follow(self, sample_s: float) -> None:
        """Keep up with the news until cancelled; what fails is tried again."""
        while True:
            with suppress(ControlError):
                state = await self.refresh()
                self.samples.append((time.perf_counter(), state.queue, state.in_flight))
            await asyncio.sleep(sample_s)

    def where(self, version: str) -> str:
        """The tier a version is on now."""
        tier = self.tiers.get(version)
        return "source" if tier is None else tier.value

    def _take(self, state: EngineState) -> None:
        if state.full:
            self.tiers.clear()
        for gone in state.removed:
            self.tiers.pop(gone, None)
        for version in state.versions:
            if version.phase is VersionPhase.RESIDENT:
                self.tiers[version.key] = version.tier
            else:
                self.tiers.pop(version.key, None)
        self.state = state


@dataclass(slots=True)
class FirstSeen:
    """Without a state port: whether a request is the first for its adapter in this phase."""

    seen: set[str] = field(default_factory=set)

    def start(self, ask: Ask) -> str:
        """FIRST or AGAIN; counts the request."""
        known = ask.model.id in self.seen
        self.seen.add(ask.model.id)
        return AGAIN if known else FIRST


class Admin:
    """Moves adapters between tiers. Every call raises ControlError for what is refused."""

    def __init__(self, session: aiohttp.ClientSession, port: Port) -> None:
        self._session = session
        self._port = port

    async def place(self, models: Sequence[Model], tier: Tier) -> None:
        """Have each of these adapters on exactly this tier: gone first, where it is higher or wanted higher."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(model: Model) -> None:
            async with gate:
                if tier is not Tier.GPU:
                    await self._settle("DELETE", model, None, HTTPStatus.NO_CONTENT)
                namespace, _, name = model.id.rpartition("/")
                body = {
                    "source": {"uri": model.uri},
                    "tier": tier.value,
                    "display": {"namespace": namespace or "bench", "name": name},
                }
                await self._settle("PUT", model, body, HTTPStatus.OK)

        await asyncio.gather(*map(one, models))

    async def _settle(self, method: str, model: Model, body: Any, done: HTTPStatus) -> None:
        """Ask until it is done."""
        uid, digest = split_version_key(model.version)
        url = self._port.url + VERSION_PATH.format(uid=uid, digest=digest)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                headers, proof = self._port.headers, self._port.proof
                async with self._session.request(method, url, json=body, headers=headers, **proof) as answer:
                    if answer.status in (done, HTTPStatus.CREATED):
                        return
                    if answer.status >= HTTPStatus.BAD_REQUEST:
                        raise ControlError(
                            f"the admin port refused {method} of {model.id}: {answer.status}"
                            f" {message_of(await answer.read())}"
                        )
            except (aiohttp.ClientError, TimeoutError) as error:
                raise ControlError(f"the admin port {self._port.url} does not answer: {error}") from error
            await asyncio.sleep(0.0 if method == "PUT" else RETRY_S / 10)
        raise ControlError(f"{model.id} did not come to its tier within {PATIENCE_S:.0f} s")


@dataclass(frozen=True, slots=True)
class Control:
    """Ports of an engine of ours: news of residency, and eviction where an admin token is given."""

    residency: Residency
    admin: Admin | None
