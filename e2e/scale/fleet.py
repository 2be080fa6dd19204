"""The fleet that the operator's benchmark runs on: engines with realistic load times, adapters, tenants, a watcher.

Called by __main__.py. Measures nothing itself beyond counting what a watch shows.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from lorafleet_contracts.admin import AdapterReport
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import UnreachableError
from lorafleet_kube.reflector import Change, Collection, Reflector
from lorafleet_operator.shell.kinds import LEASES, LORA_ADAPTERS, LORA_POOLS, STATEFUL_SETS, TENANTS
from tests.support.stub_engine import Pace, StubEngine
from tests.support.team import Object, Team

BYTES_PER_RANK = 5_046_272
RANKS = (8, 8, 8, 8, 16, 16, 16, 32, 32, 64)
ENGINE_BUDGET = 40_000_000_000
PACE = Pace(latency=0.02, fetch=1 / 400e6, load=1 / 2e9, patience=1.0)
"""Each of four jobs at a time: 400 MB/s from the source through the hashes to disk, 2 GB/s from disk to memory."""
ADAPTERS_PER_TENANT = 50
CREATIONS_IN_FLIGHT = 16
CREATION_TRIES = 20
TRAFFIC_SECONDS = 0.2


def name_of(index: int) -> str:
    """The name of the adapter with this number."""
    return f"a{index:05d}"


def report_of(index: int) -> AdapterReport:
    """What the files of the adapter with this number hold (Qwen2.5-7B's bytes a rank, all seven projections)."""
    rank = RANKS[index % len(RANKS)]
    return AdapterReport(
        digest=f"sha256:{index:064x}", bytes=rank * BYTES_PER_RANK, rank=rank, target_modules=["q_proj"], base="smollm2"
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """One version of an object: is it Ready, and what does that condition say?"""

    version: str
    ready: bool
    said: str


@dataclass(slots=True)
class Watcher:
    """What a watch shows of the users' objects, the workload and the Lease: `writes` counts versions by kind and name.

    `ready` holds the adapters that are Ready at their generation, `told` what each was told so far.
    """

    writes: Counter[tuple[str, str]] = field(default_factory=Counter)
    ready: set[str] = field(default_factory=set)
    adapters: set[str] = field(default_factory=set)
    told: dict[str, list[str]] = field(default_factory=dict)

    def reflectors(self, api: KubeApi, namespace: str, system: str) -> list[Reflector[Seen]]:
        """One for each kind; run them."""
        kinds = (
            ("LoraAdapter", LORA_ADAPTERS.path(namespace)),
            ("LoraPool", LORA_POOLS.path(namespace)),
            ("Tenant", TENANTS.path(namespace)),
            ("StatefulSet", STATEFUL_SETS.path(namespace)),
            ("Lease", LEASES.path(system)),
        )
        return [Reflector(api, Collection(path), _read, self._counting(kind)) for kind, path in kinds]

    def of(self, kind: str) -> list[int]:
        """Versions seen of every object of a kind."""
        return [count for (found, _), count in self.writes.items() if found == kind]

    def busiest(self) -> str:
        """What the adapter with the most versions was told."""
        name = max(self.told, key=lambda each: len(self.told[each]))
        return f"{name}: {' -> '.join(self.told[name])}"

    def _counting(self, kind: str) -> Callable[[Change[Seen]], None]:
        def count(change: Change[Seen]) -> None:
            name = change.key[1]
            self.writes[kind, name] += 1
            if kind != "LoraAdapter":
                return
            (self.adapters.discard if change.new is None else self.adapters.add)(name)
            (self.ready.add if change.new is not None and change.new.ready else self.ready.discard)(name)
            self.told.setdefault(name, []).append(change.new.said if change.new is not None else "deleted")

        return count


def _read(found: Object) -> Seen:
    status, meta = found.get("status", {}), found["metadata"]
    current = bool(status) and status.get("observedGeneration") == meta["generation"]
    conditions = [each for each in status.get("conditions", []) if each["type"] == "Ready"]
    ready = current and any(each["status"] == "True" for each in conditions)
    said = "; ".join(f"{each['reason']} {each.get('message', '')}" for each in conditions)
    return Seen(meta["resourceVersion"], ready, said)


async def start_engines(team: Team, count: int) -> list[StubEngine]:
    """Ready engines that know every adapter's files."""
    engines = []
    for index in range(count):
        engine = await team.engine(index)
        engine.budget, engine.pace = ENGINE_BUDGET, PACE
        engines.append(engine)
    return engines


def stock(engines: Iterable[StubEngine], count: int) -> None:
    """Put the files of the first `count` adapters where the engines fetch from."""
    shelf = {f"http://assets/{name_of(index)}": report_of(index) for index in range(count)}
    for engine in engines:
        engine.findings = shelf


async def create(team: Team, indices: Iterable[int]) -> None:
    """Apply adapters, some at a time, and a tenant for every fifty."""
    free = asyncio.Semaphore(CREATIONS_IN_FLIGHT)

    async def insist(apply: Callable[[], Awaitable[Object]]) -> None:
        async with free:
            for _ in range(CREATION_TRIES):
                with suppress(UnreachableError):
                    await apply()
                    return
                await asyncio.sleep(1)
        raise AssertionError("the API server takes no writes")

    async def one(index: int) -> None:
        await insist(lambda: team.adapter(name_of(index)))

    async def tenant(first: int) -> None:
        names = [name_of(first + each) for each in range(ADAPTERS_PER_TENANT)]
        await insist(lambda: team.tenant(f"t{first:05d}", *names))

    numbers = list(indices)
    tenants = [tenant(each) for each in numbers if each % ADAPTERS_PER_TENANT == 0]
    await asyncio.gather(*tenants, *(one(index) for index in numbers))


async def traffic(engines: list[StubEngine]) -> None:
    """Have every engine's load move several times a second, as requests make it. Cancel to stop."""
    while True:
        for engine in engines:
            engine.in_flight = random.randrange(64)
            engine.touch()
        await asyncio.sleep(TRAFFIC_SECONDS)


async def wait_until(holds: Callable[[], bool | Awaitable[bool]], seconds: float, told: Callable[[], str]) -> float:
    """Wait; returns the seconds it took. Raises AssertionError with what `told` says when it takes too long."""
    started = time.monotonic()
    reported = started
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return time.monotonic() - started
        now = time.monotonic()
        assert now - started < seconds, f"not within {seconds:.0f} s: {told()}"
        if now - reported > 10:
            reported = now
            print(f"   {now - started:5.0f} s  {told()}", flush=True)
        await asyncio.sleep(0.1)
