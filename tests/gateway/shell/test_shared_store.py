"""Against a real Valkey: the script's sums are core's, and what is open ends by itself."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from valkey.asyncio import Valkey

from lorafleet_gateway.core.limits import Ask, Budget, Ledger, Limit, Limits, Refused, admit, charge
from lorafleet_gateway.shell.limits import shared_store
from lorafleet_gateway.shell.limits.shared_store import STORE_ERRORS, SharedStore
from tests.gateway.doubles.stack import free_ports
from tests.gateway.doubles.store import ValkeyServer, run_store, store_url

SLOW = Limits(Budget(0.001, 20), Budget(0.001, 1_000), 4)
"""What comes in during a test is next to nothing, so that its clock does not matter."""
TENANT = ("acme", "t")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with run_store(tmp_path_factory.mktemp("store"), free_ports(1)[0]) as running:
        yield running


@pytest_asyncio.fixture
async def raw(server: ValkeyServer) -> AsyncIterator[Valkey]:
    client = Valkey.from_url(store_url(server.port), decode_responses=True)
    await client.flushall()
    yield client
    await client.aclose()


@pytest_asyncio.fixture
async def store(server: ValkeyServer, raw: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SharedStore]:
    monkeypatch.setattr(shared_store, "TIMEOUT_SECONDS", 30.0)  # a busy machine is no store that is down
    opened = SharedStore(store_url(server.port))
    yield opened
    await opened.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limits", [SLOW, Limits(SLOW.requests, None, 3), Limits(None, SLOW.tokens, None)])
async def test_it_counts_as_core_does(store: SharedStore, limits: Limits, seed: int) -> None:
    dice, ledger, asked = random.Random(seed), Ledger(at=0.0), list[Ask]()
    for number in range(60):
        step = dice.random()
        if step < 0.7 or not asked:
            ask = Ask(f"r{number}", dice.randrange(150))
            theirs, ours = await store.admit(TENANT, limits, ask), admit(ledger, limits, ask, 0.0)
            assert (theirs and theirs.limit) == (ours and ours.limit)
            assert theirs is None or ours is None or theirs.wait == pytest.approx(ours.wait, rel=0.01)
            if theirs is None:
                asked.append(ask)
        elif step < 0.9:
            ended = asked.pop(dice.randrange(len(asked)))
            await store.end(TENANT, limits, ended)
            ledger.open.discard(ended.id)
            charge(ledger, limits, -ended.tokens, 0.0)
        else:
            tokens = dice.randrange(200)
            await store.charge(TENANT, limits, tokens)
            charge(ledger, limits, tokens, 0.0)


async def test_time_gives_back_and_a_full_budget_leaves_no_record(store: SharedStore, raw: Valkey) -> None:
    limits = Limits(Budget(20, 1), None, None)
    assert await store.admit(TENANT, limits, Ask("a", 0)) is None
    refused = await store.admit(TENANT, limits, Ask("b", 0))
    if refused is not None:  # a slow machine may be past it already
        assert refused.limit is Limit.REQUESTS
        await asyncio.sleep(refused.wait)
    assert await store.admit(TENANT, limits, Ask("c", 0)) is None
    assert await store.admit(("globex", "t"), Limits(Budget(0.001, 20), None, None), Ask("d", 0)) is None
    assert 900 < await raw.ttl("lorafleet:{globex/t}:budgets") <= 1_001  # seconds until one request is back


async def test_tenants_do_not_share(store: SharedStore) -> None:
    limits = Limits(Budget(0.001, 1), None, None)
    assert await store.admit(TENANT, limits, Ask("a", 0)) is None
    assert await store.admit(("globex", "t"), limits, Ask("b", 0)) is None
    assert await store.admit(TENANT, limits, Ask("c", 0)) is not None


async def test_a_place_expires_unless_it_is_renewed(
    store: SharedStore, raw: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, place = Limits(None, None, 2), "lorafleet:{acme/t}:open"
    monkeypatch.setattr(shared_store, "PLACE_SECONDS", 600)
    assert await store.admit(TENANT, limits, Ask("kept", 0)) is None
    assert await store.admit(TENANT, limits, Ask("left", 0)) is None
    assert await store.admit(TENANT, limits, Ask("more", 0)) == Refused(Limit.CONCURRENCY, 1.0)
    now = (await raw.time())[0]
    await raw.zadd(place, {"kept": now + 5, "left": now - 5})  # as if nobody had renewed them for ten minutes
    await store.renew({TENANT: ["kept", "gone"]})
    assert await raw.zscore(place, "kept") > now + 500
    assert await raw.zscore(place, "gone") is None  # nobody comes back who has ended
    assert await store.admit(TENANT, limits, Ask("more", 0)) is None
    assert sorted(await raw.zrange(place, 0, -1)) == ["kept", "more"]


@pytest.mark.parametrize(("patience", "answered"), [(30.0, True), (0.05, False)])
async def test_a_burst_waits_for_connections_longer_than_for_an_answer(
    server: ValkeyServer, raw: Valkey, monkeypatch: pytest.MonkeyPatch, patience: float, answered: bool
) -> None:
    monkeypatch.setattr(shared_store, "CONNECTIONS", 2)
    monkeypatch.setattr(shared_store, "TIMEOUT_SECONDS", 30.0)
    monkeypatch.setattr(shared_store, "QUEUE_SECONDS", patience)
    store = SharedStore(store_url(server.port))
    await raw.client_pause(200)
    asked = [store.admit(TENANT, Limits(None, None, 1_000), Ask(str(number), 0)) for number in range(100)]
    said = await asyncio.gather(*asked, return_exceptions=True)
    assert all(each is None for each in said) == answered
    await store.close()


async def test_it_says_when_it_is_away_and_answers_after_a_restart(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    store = SharedStore(store_url(port))
    with pytest.raises(STORE_ERRORS):
        await store.ping()
    with run_store(tmp_path, port) as server:
        assert await store.admit(TENANT, SLOW, Ask("a", 1)) is None
        server.stop()
        with pytest.raises(STORE_ERRORS):
            await store.admit(TENANT, SLOW, Ask("b", 1))
        server.start(timeout=30)
        await store.ping()
        assert await store.admit(TENANT, SLOW, Ask("b", 1)) is None  # through connections that the old one had closed
    await store.close()


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="URL"):
        SharedStore("http://store:6379")
