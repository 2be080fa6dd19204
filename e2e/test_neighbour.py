"""A tenant that offers ten times its limit takes nothing from the one beside it, but what the limit allows."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import aiohttp
import pytest

from e2e.fleet import NAMESPACE, Fleet
from e2e.quickstart import Keys

LIMIT = 2
"""Requests a second that the noisy tenant may have."""
POLITE = 2
"""Requests a second of the other one."""
SECONDS, ROUNDS = 18.0, 10
"""Of each phase, and how often the two follow each other, so that whatever else the machine does is in both."""
SETTLING = 3.0
"""Seconds at the beginning of a phase whose answers do not count: the noisy tenant's saved burst is let in then."""
BAR = 1.3


@dataclass
class Caller:
    """One tenant's requests: answers by status, and the seconds to the first token of each that counts."""

    url: str
    key: str
    model: str
    statuses: Counter[int] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)

    async def offer(self, client: aiohttp.ClientSession, rate: float, seconds: float) -> None:
        """Ask at an even rate, however long answers take."""
        started, asked = time.monotonic(), []
        for number in count():
            due = started + number / rate
            if due - started >= seconds:
                break
            await asyncio.sleep(max(due - time.monotonic(), 0))
            asked.append(asyncio.create_task(self._ask(client, counts=due - started >= SETTLING)))
        await asyncio.gather(*asked)

    async def _ask(self, client: aiohttp.ClientSession, *, counts: bool) -> None:
        messages = [{"role": "user", "content": "What is snow?"}]
        body = {"model": self.model, "messages": messages, "max_tokens": 4, "stream": True}
        headers = {"authorization": f"Bearer {self.key}"}
        began = time.monotonic()
        async with client.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as response:
            self.statuses[response.status] += 1
            if response.status == 200:
                await response.content.readany()
                if counts:
                    self.waits.append(time.monotonic() - began)
            await response.read()

    @property
    def p99(self) -> float:
        """Seconds to the first token."""
        return sorted(self.waits)[int(len(self.waits) * 0.99) - 1]


@pytest.fixture
def address(fleet: Fleet, keys: Keys) -> Iterator[str]:
    """The gateway of a fleet where globex is limited."""
    service = fleet.get("service", "lorafleet-gateway", NAMESPACE)
    assert service
    fleet.patch("tenant", "globex", {"limits": {"requestsPerSecond": LIMIT}})
    yield f"http://{service['spec']['clusterIP']}:8080"
    fleet.patch("tenant", "globex", {"limits": None})


async def measure(url: str, keys: Keys) -> tuple[dict[int, Caller], dict[int, Caller]]:
    """The polite and the noisy caller by how often its limit the noisy one offers."""
    polite = {times: Caller(url, keys.acme, "pirate") for times in (1, 10)}
    noisy = {times: Caller(url, keys.globex, "support") for times in (1, 10)}
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        for times in (1, 10) * ROUNDS:
            await asyncio.gather(
                polite[times].offer(client, POLITE, SECONDS), noisy[times].offer(client, LIMIT * times, SECONDS)
            )
    return polite, noisy


@pytest.mark.long
def test_ten_times_the_limit_is_felt_no_more_than_the_limit(address: str, keys: Keys) -> None:
    polite, noisy = asyncio.run(measure(address, keys))
    figures = {
        "politeP99Seconds": {times: round(each.p99, 3) for times, each in polite.items()},
        "ratio": round(polite[10].p99 / polite[1].p99, 2),
        "noisy": {times: dict(each.statuses) for times, each in noisy.items()},
    }
    print(json.dumps(figures))
    assert all(set(each.statuses) == {200} for each in polite.values()), figures
    assert noisy[10].statuses[429] > 7 * noisy[10].statuses[200], figures
    assert polite[10].p99 <= BAR * polite[1].p99, figures
