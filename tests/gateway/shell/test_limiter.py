"""What the limiter does when requests and Envoy go away in the middle; tests/gateway/test_limits.py has the rest."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest
import pytest_asyncio

from lorafleet_contracts.admin import GatewayState, UsageState
from lorafleet_gateway.core.limits import Ask, Budget, Limit, Limits, Refused
from lorafleet_gateway.core.records import ObjectKey
from lorafleet_gateway.core.rejections import Rejection
from lorafleet_gateway.shell.limits.limiter import Call, Limiter, WhenDown
from lorafleet_gateway.shell.metrics import Metrics
from tests.gateway.core.records import make_replica, make_tenant

LIMITS = Limits(None, Budget(1, 1_000), 1)
TENANT = replace(make_tenant("acme"), limits=LIMITS)


@dataclass
class Store:
    """A store that answers when it is let, and what it was told of ends."""

    answer: Refused | None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    ended: list[str] = field(default_factory=list)

    async def admit(self, tenant: ObjectKey, limits: Limits, ask: Ask) -> Refused | None:
        self.asked.set()
        await self.gate.wait()
        return self.answer

    async def end(self, tenant: ObjectKey, limits: Limits, ask: Ask) -> None:
        self.ended.append(ask.id)

    async def close(self) -> None:
        pass


@pytest_asyncio.fixture
async def alone() -> AsyncIterator[Limiter]:
    limiter = Limiter("g1", None, WhenDown.OPEN, Metrics())
    yield limiter
    await limiter.close()


@pytest.mark.parametrize(("answer", "ended"), [(None, ["a"]), (Refused(Limit.TOKENS, 9.0), [])])
async def test_a_client_that_leaves_meanwhile_gets_back_what_it_was_charged_and_no_more(
    answer: Refused | None, ended: list[str]
) -> None:
    store = Store(answer)
    limiter = Limiter("g1", store, WhenDown.OPEN, Metrics())  # type: ignore[arg-type]  # what of it is called
    asking = asyncio.create_task(limiter.admit(TENANT, Call("a", 100, None), 4096))
    await store.asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    store.gate.set()
    await limiter.close()
    assert store.ended == ended


async def test_places_come_back_when_envoy_is_gone(alone: Limiter) -> None:
    await alone.admit(TENANT, Call("a", 100, None), 4096)
    with pytest.raises(Rejection):
        await alone.admit(TENANT, Call("b", 100, None), 4096)
    alone.end_all()
    await asyncio.sleep(0)
    await alone.admit(TENANT, Call("c", 100, None), 4096)


async def test_a_new_limit_charges_nothing_of_the_past(alone: Limiter) -> None:
    def counted(requests: int, *, told: bool = True) -> GatewayState:
        row = UsageState(tenant="acme/t", adapter="a", gateway="g1", requests=requests, prompt_tokens=requests)
        return GatewayState(
            boot_id="boot", seq=requests, full=False, ready=True, draining=False, usage=[row] if told else []
        )

    alone.use({TENANT.key: replace(TENANT, limits=None)})
    alone.read_usage(make_replica(1), counted(1, told=False))
    alone.use({TENANT.key: TENANT})
    alone.read_usage(make_replica(1), counted(1_000_000))
    await asyncio.sleep(0)
    await alone.admit(TENANT, Call("a", 100, None), 4096)
