"""Holds tenants to their limits. Asked by shell/picker.py once a request of a limited tenant; told of ends and usage.

While the shared store is away the installation's choice applies: each instance counts for itself, or limited tenants
are refused. What was counted in a store is settled there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from lorafleet_contracts.admin import GatewayState
from lorafleet_gateway.core.limits import Ask, Limits, Refused, estimate_tokens
from lorafleet_gateway.core.metering import Meter
from lorafleet_gateway.core.records import ObjectKey, Replica, Tenant
from lorafleet_gateway.core.rejections import limits_unavailable, over_limit
from lorafleet_gateway.shell.limits.shared_store import STORE_ERRORS, SharedStore
from lorafleet_gateway.shell.limits.stores import MemoryStore, Store
from lorafleet_gateway.shell.metrics import Metrics

LOOK_SECONDS = 1.0
"""Between two looks at whether the store answers."""
RENEW_LOOKS = 10
"""Looks between two renewals, three of which fit into the life of a place."""
LONGEST_SECONDS = 6 * 3600
"""After which a request is held to have ended although nobody said so."""
EARLY_ENDS = 1024
"""Ends that are remembered for requests which are just being let in."""

log = logging.getLogger(__name__)


class WhenDown(StrEnum):
    """What happens to limited tenants while the store is away."""

    OPEN = "Open"
    CLOSED = "Closed"


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a request: Envoy's id for it, its size, and the most tokens it wants back."""

    id: str
    body_bytes: int
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class _Open:
    tenant: ObjectKey
    limits: Limits
    ask: Ask
    store: Store
    since: float


class Limiter:
    """The limits of one gateway instance, by its name in the engines' counters. `shared` None: it is the only one."""

    def __init__(self, gateway: str, shared: SharedStore | None, when_down: WhenDown, metrics: Metrics) -> None:
        self._gateway = gateway
        self._shared = shared
        self._when_down = when_down
        self._metrics = metrics
        self._memory = MemoryStore()
        self._meter = Meter(gateway)
        self._tenants: Mapping[ObjectKey, Tenant] = {}
        self._open: dict[str, _Open] = {}
        self._ended: dict[str, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._up = True
        self.usage_of = ""
        """The instance whose usage engines should tell: none while no tenant's tokens are limited."""
        self._show()

    @property
    def open_requests(self) -> int:
        """Requests whose end is waited for."""
        return len(self._open)

    def use(self, tenants: Mapping[ObjectKey, Tenant]) -> None:
        """These are the tenants from now on."""
        self._tenants = tenants
        limits = (each.limits for each in tenants.values())
        self.usage_of = self._gateway if any(each is not None and each.tokens is not None for each in limits) else ""

    async def admit(self, tenant: Tenant, call: Call, window: int) -> None:
        """Let a request in; one whose end matters must be ended. Raises Rejection (429; 503 without the store)."""
        limits = tenant.limits
        if limits is None:
            return
        usual = self._meter.usual_answer(tenant.key)
        answer = usual if call.max_tokens is None else min(call.max_tokens, usual)
        ask = Ask(call.id, estimate_tokens(call.body_bytes, answer, window) if limits.tokens else 0)
        store = self._choose()
        asking = asyncio.ensure_future(store.admit(tenant.key, limits, ask))
        try:
            refused = await asyncio.shield(asking)
        except STORE_ERRORS as error:
            self._lost(error)
            store = self._choose()
            refused = await store.admit(tenant.key, limits, ask)
        except asyncio.CancelledError:  # the client has left
            self._later(_take_back(asking, store.end(tenant.key, limits, ask)))
            raise
        if refused is not None:
            self._metrics.count_throttled("/".join(tenant.key), refused.limit.value)
            raise over_limit("/".join(tenant.key), limits, refused)
        if limits.counted_to_the_end:
            self._open[call.id] = _Open(tenant.key, limits, ask, store, asyncio.get_running_loop().time())
            if call.id in self._ended:
                del self._ended[call.id]
                self.end(call.id)

    def end(self, request: str) -> None:
        """A request has ended, however it did; unknown ones are those of tenants without limits."""
        ended = self._open.pop(request, None)
        if ended is not None:
            self._later(ended.store.end(ended.tenant, ended.limits, ended.ask))
            return
        self._ended[request] = None
        if len(self._ended) > EARLY_ENDS:
            del self._ended[next(iter(self._ended))]

    def end_all(self) -> None:
        """Envoy is gone, and all that it had open with it."""
        for request in list(self._open):
            self.end(request)

    def read_usage(self, replica: Replica, state: GatewayState) -> None:
        """Charge what an engine has counted since its last answer."""
        if not self.usage_of:
            self._meter.skip(replica, state.boot_id)
            return
        for key, used in self._meter.read(replica, state.boot_id, state.usage).items():
            tenant = self._tenants.get(key)
            if tenant is not None and tenant.limits is not None and tenant.limits.tokens is not None:
                self._later(self._charge(key, tenant.limits, used.prompt_tokens + used.answer_tokens))

    def forget(self, replica: Replica) -> None:
        """It is gone."""
        self._meter.forget(replica)

    async def run(self) -> NoReturn:
        """Look after the store and the open requests for ever. Cancel to stop."""
        looks = 0
        while True:
            if self._shared is not None:
                await self._look(self._shared.ping)
                if looks % RENEW_LOOKS == 0:
                    await self._look(self._renew)
            if looks % RENEW_LOOKS == 0:
                self._give_up()
            looks += 1
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Settle what is under way, and end the connections to the store."""
        await asyncio.gather(*self._tasks)
        if self._shared is not None:
            await self._shared.close()

    def _choose(self) -> Store:
        if self._shared is None:
            return self._memory
        if self._up:
            return self._shared
        self._metrics.without_store.inc()
        if self._when_down is WhenDown.CLOSED:
            raise limits_unavailable()
        return self._memory

    async def _charge(self, tenant: ObjectKey, limits: Limits, tokens: int) -> None:
        store = self._shared if self._shared is not None and self._up else self._memory
        await store.charge(tenant, limits, tokens)

    async def _renew(self) -> None:
        held: dict[ObjectKey, list[str]] = {}
        for each in self._open.values():
            if each.limits.concurrency is not None and each.store is self._shared:
                held.setdefault(each.tenant, []).append(each.ask.id)
        if self._shared is not None:
            await self._shared.renew(held)

    def _give_up(self) -> None:
        longest = asyncio.get_running_loop().time() - LONGEST_SECONDS
        for request in [each.ask.id for each in self._open.values() if each.since < longest]:
            self.end(request)

    async def _look(self, action: Callable[[], Awaitable[None]]) -> None:
        try:
            await action()
        except STORE_ERRORS as error:
            self._lost(error)
        else:
            if not self._up:
                self._up = True
                log.info("the store of limits answers again")
                self._show()

    def _lost(self, error: BaseException) -> None:
        if self._up:
            self._up = False
            log.warning(
                "the store of limits is away (%s: %s): limited tenants are %s until it answers. Check the URL in "
                "LORAFLEET_LIMITS_STORE_FILE and the store",
                type(error).__name__,
                error,
                "counted by each gateway alone" if self._when_down is WhenDown.OPEN else "refused",
            )
            self._show()

    def _show(self) -> None:
        if self._shared is not None:
            self._metrics.store_up.labels(self._when_down.value).set(self._up)

    def _later(self, settling: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._settle(settling))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, settling: Coroutine[Any, Any, None]) -> None:
        try:
            await settling
        except STORE_ERRORS as error:
            self._lost(error)


async def _take_back(asking: Awaitable[Refused | None], end: Coroutine[Any, Any, None]) -> None:
    """End what the store lets in; what it refuses was not charged, and nothing may come back for it."""
    with closing(end):
        if await asking is None:
            await end
