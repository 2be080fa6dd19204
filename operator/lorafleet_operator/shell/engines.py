"""Follows every engine's state port, one task a pod. Read by observe.py; calls nothing that changes an engine."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from lorafleet_contracts.admin import STATE_PATH, EngineState, PortName
from lorafleet_contracts.names import EnginePort
from lorafleet_operator.core.snapshot import PoolTokens
from lorafleet_operator.shell.records import PodRecord, PoolKey
from lorafleet_operator.shell.trust import Trust

log = logging.getLogger(__name__)

WAIT_SECONDS = 10.0
"""How long the engine may hold a question when there is no news."""
POLL_SECONDS = 13.0
"""How long an answer may take in all: an engine that says nothing beyond that counts as gone."""
CONNECT_SECONDS = 3.0
PAUSE_SECONDS = 0.1
QUIET_PAUSE_SECONDS = 0.5
"""The pause after news that concern no plan: under traffic the engine has some with every request."""
FIRST_DELAY_SECONDS = 0.25
MAX_DELAY_SECONDS = 2.0
STALE_SECONDS = 10.0
"""How long the last known state of an engine that no longer answers is still believed."""
LOAD_SECONDS = 10.0
"""How often a pool's plan is made anew under a load that changes nothing else."""
MOST_BYTES = 32 << 20
"""Far above any state; an engine gone mad must not fill the operator's memory."""

TokensOf = Callable[[PoolKey], PoolTokens | None]


@dataclass(slots=True)
class _Link:
    task: asyncio.Task[None]
    pod: PodRecord
    state: EngineState | None = None
    failing_since: float | None = None
    tried: bool = False


class EngineLinks:
    """The last state of every followed engine. `on_change` is told the pool when something that counts moved, and now
    and then while there is load."""

    def __init__(
        self, session: aiohttp.ClientSession, trust: Trust, tokens_of: TokensOf, on_change: Callable[[PoolKey], None]
    ) -> None:
        self._session = session
        self._trust = trust
        self._tokens_of = tokens_of
        self._on_change = on_change
        self._links: dict[str, _Link] = {}
        self._busy_told: dict[PoolKey, float] = {}

    def follow(self, pod: PodRecord) -> None:
        """Start to follow a pod, or take note of its new address."""
        link = self._links.get(pod.uid)
        if link is not None and link.pod.ip == pod.ip:
            link.pod = pod
            return
        self.forget(pod.uid)
        if pod.ip:
            task = asyncio.create_task(self._run(pod), name=f"state {pod.name}")
            self._links[pod.uid] = _Link(task, pod)

    def forget(self, uid: str) -> None:
        """Stop to follow a pod."""
        link = self._links.pop(uid, None)
        if link is not None:
            link.task.cancel()

    def state(self, uid: str) -> EngineState | None:
        """The state of a pod's engine, None while it can't be reached."""
        link = self._links.get(uid)
        return link.state if link else None

    def tried(self, uid: str) -> bool:
        """Whether a pod has been asked at least once (or has no address to ask)."""
        link = self._links.get(uid)
        return link is None or link.tried

    async def close(self) -> None:
        """Stop to follow all pods."""
        tasks = [link.task for link in self._links.values()]
        for uid in list(self._links):
            self.forget(uid)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, pod: PodRecord) -> None:
        delay = FIRST_DELAY_SECONDS
        if pod.server_name:
            await self._trust.known.wait()
        while True:
            try:
                state = await self._ask(pod)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError) as error:
                log.debug("state of %s: %r", pod.name, error)
                self._fail(pod)
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_DELAY_SECONDS)
                continue
            delay = FIRST_DELAY_SECONDS
            counted = self._take(pod, state)
            await asyncio.sleep(PAUSE_SECONDS if counted else QUIET_PAUSE_SECONDS)

    async def _ask(self, pod: PodRecord) -> EngineState:
        link, tokens = self._links[pod.uid], self._tokens_of(pod.pool)
        token = tokens.by_port[PortName.STATE.value][0] if tokens else ""
        known = link.state
        params = {"since": str(known.seq), "boot": known.boot_id, "timeout": str(WAIT_SECONDS)} if known else {}
        limits = aiohttp.ClientTimeout(total=POLL_SECONDS, sock_connect=CONNECT_SECONDS)
        async with self._session.get(
            engine_url(pod.ip, EnginePort.STATE, STATE_PATH, tls=bool(pod.server_name)),
            params=params,
            headers={"authorization": f"Bearer {token}"},
            timeout=limits,
            allow_redirects=False,
            **self._trust.options(pod.server_name),
        ) as response:
            if response.status != 200:
                raise aiohttp.ClientError(f"status {response.status}")
            return EngineState.model_validate_json(await read_bounded(response))

    def _take(self, pod: PodRecord, news: EngineState) -> bool:
        """Merge news; returns whether they concern plans."""
        link = self._links[pod.uid]
        merged = news if news.full or link.state is None else merge(link.state, news)
        changed = link.state is None or _what_counts(link.state) != _what_counts(merged)
        before = link.state
        link.state, link.failing_since, link.tried = merged, None, True
        if changed or self._is_load_due(pod.pool, before, merged):
            self._on_change(pod.pool)
        return changed

    def _is_load_due(self, pool: PoolKey, before: EngineState | None, state: EngineState) -> bool:
        """Whether there is load, and it is time to look at it again."""
        now = time.monotonic()
        if now < self._busy_told.get(pool, 0.0) + LOAD_SECONDS:
            return False
        if not state.in_flight and not state.queue and before is not None and before.usage == state.usage:
            return False
        self._busy_told[pool] = now
        return True

    def _fail(self, pod: PodRecord) -> None:
        link, now = self._links[pod.uid], time.monotonic()
        link.failing_since = link.failing_since or now
        first, link.tried = not link.tried, True
        stale = link.state is not None and now - link.failing_since > STALE_SECONDS
        if stale:
            link.state = None
        if stale or first:
            self._on_change(pod.pool)


def engine_url(ip: str, port: EnginePort, path: str, *, tls: bool = False) -> str:
    """URL of one of an engine's ports."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"{'https' if tls else 'http'}://{host}:{int(port)}{path}"


async def read_bounded(response: aiohttp.ClientResponse) -> bytes:
    """An engine's answer. Raises aiohttp.ClientPayloadError when it does not end within a sensible size."""
    answer = bytearray()
    async for chunk in response.content.iter_any():
        answer += chunk
        if len(answer) > MOST_BYTES:
            raise aiohttp.ClientPayloadError(f"more than {MOST_BYTES} bytes")
    return bytes(answer)


def merge(known: EngineState, news: EngineState) -> EngineState:
    """A full state from the known one and a delta."""
    versions = {each.key: each for each in known.versions}
    versions |= {each.key: each for each in news.versions}
    for key in news.removed:
        versions.pop(key, None)
    return news.model_copy(update={"full": True, "versions": list(versions.values()), "removed": []})


def _what_counts(state: EngineState) -> tuple[object, ...]:
    """The part of a state that plans depend on; loads and counters move all the time."""
    memory = state.memory
    return (
        state.boot_id,
        state.ready,
        state.draining,
        state.base,
        memory and (memory.weights, memory.activations, memory.adapters, memory.adapters_used, memory.kv_tokens),
        sorted((each.key, each.tier, each.phase, each.rank, each.bytes) for each in state.versions),
        {each.key: each.quality.passed for each in state.versions if each.quality},
        state.certificate,
    )
