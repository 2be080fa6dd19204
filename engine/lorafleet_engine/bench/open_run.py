"""The deployed engine under an open loop: rare adapters beside popular ones, and a tenant that asks for ten times its
share beside polite ones. Used by parts/open.py.

As many adapters of the catalogue as the engine has room for are resident. The client is that of `lorafleet bench
serve`: latency counts from when a request was due. No gateway stands in front, so nothing but the scheduler of the
engine limits a tenant.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import aiohttp

from lorafleet_contracts.admin import MemoryState, Tier
from lorafleet_contracts.capacity import adapter_bytes
from lorafleet_contracts.digest import adapter_files, folder_digest
from lorafleet_contracts.names import HEADER_GATEWAY, HEADER_MODEL, HEADER_TENANT, version_key
from lorafleet_engine.bench.bench import Bench
from lorafleet_engine.bench.deployed import prepared_server
from lorafleet_engine.bench.endpoint.asks import Ask, Sizes, name_adapters, poisson
from lorafleet_engine.bench.endpoint.client import Client, Target
from lorafleet_engine.bench.endpoint.control import Admin, Port, Residency
from lorafleet_engine.bench.endpoint.drive import Hooks, Phase, closed_loop, open_loop
from lorafleet_engine.bench.endpoint.figures import Slo, by_group, error_examples, phase_figures
from lorafleet_engine.bench.endpoint.models import Model
from lorafleet_engine.bench.server_child import TOKEN, Server
from lorafleet_engine.bench.session import BenchError
from lorafleet_engine.bench.workload import write_adapters

LOAD = 0.7
"""Of saturation."""
TENANTS = 10
EXCESS = 10
"""So many times its share is what one tenant asks for."""
SKEWS = (1.0, 0.1)
SEED = 7
TIMEOUT_S = 120.0
SLO = Slo(ttft=0.5, itl=0.03)
HASHERS = 8
FILES = 48
"""Different files behind the catalogue. Every version has pages of its own on the device; each file is packed once."""
COUNTS = {1.0: 1.0, 0.1: 0.4}
"""Of the open-loop requests by skew: rare deciles of a head-heavy one need more."""
HEAVY, POLITE = "heavy", "polite-"
LEFT_OUT = ("by_adapter",)
"""Two hundred rows that a record need not hold."""


def measure(bench: Bench) -> dict[str, Any]:
    """Start the server, bring the adapters, run all phases. Raises BenchError."""
    child, plan = prepared_server(bench, HOST_CACHE_BYTES=str(_cache_bytes(bench)))
    numbers = range(bench.dims.catalogue)
    adapters = write_adapters(plan.volumes / "models", numbers[:FILES], raw=bench.raw)
    with ThreadPoolExecutor(HASHERS) as pool:
        digests = list(pool.map(lambda each: folder_digest(each.directory, adapter_files(each.directory)), adapters))
    models = []
    for number in numbers:
        adapter, digest, name = adapters[number % len(adapters)], digests[number % len(adapters)], f"a{number:04d}"
        version = version_key(name, digest)
        uri = f"pvc://models/{adapter.directory.name}"
        models.append(Model(name, adapter.rank, _headers(version, POLITE + "0"), version, uri))
    with child.running_server(plan) as server:
        record = asyncio.run(_Run(bench, server, tuple(models)).record())
    return {"case": "open-loop", **record, "settings": plan.settings}


def _cache_bytes(bench: Bench) -> int:
    return 12 << 30 if bench.dims.memory_bytes is None else 64 << 20


def _headers(version: str, tenant: str) -> dict[str, str]:
    return {HEADER_MODEL: version, HEADER_TENANT: f"bench/{tenant}", HEADER_GATEWAY: "bench"}


@dataclass(frozen=True, slots=True)
class _Run:
    bench: Bench
    server: Server
    models: tuple[Model, ...]

    async def record(self) -> dict[str, Any]:
        """Saturation, both skews at LOAD of it, then the neighbours."""
        timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 18) as session:
            memory = await self._memory(Residency(session, self._port(self.server.state)))
            fitting = replace(self, models=self._fitting(memory))
            await Admin(session, self._port(self.server.admin)).place(fitting.models, Tier.GPU)
            return await fitting._phases(Client(session, self._target()), memory)

    async def _memory(self, residency: Residency) -> MemoryState:
        """What the loop says of it, which may be a moment after the engine is ready."""
        async with asyncio.timeout(TIMEOUT_S):
            while (memory := (await residency.refresh(wait_s=1)).memory) is None:
                pass
        return memory

    def _fitting(self, memory: MemoryState) -> tuple[Model, ...]:
        """The first of the catalogue that the adapters' share of the memory holds together."""
        shape, size = self.bench.config.shape, self.bench.dtype.itemsize
        needed = accumulate(adapter_bytes(shape, model.rank or 0, dtype_bytes=size) for model in self.models)
        return self.models[: sum(each <= memory.adapters for each in needed)]

    async def _phases(self, client: Client, memory: MemoryState) -> dict[str, Any]:
        record: dict[str, Any] = {
            "adapters": len(self.models),
            "files": min(FILES, len(self.models)),
            "prompt": self.sizes.prompt,
            "answer": self.sizes.answer,
            "load": LOAD,
            "memory": memory.model_dump(),
        }
        await self._saturation(client, SKEWS[0])  # warms up
        for zipf in SKEWS:
            full = await self._saturation(client, zipf)
            count = round(COUNTS[zipf] * self.bench.dims.open_requests)
            arrivals = poisson(LOAD * full["requests_per_s"], count, self.sizes, SEED)
            asks = name_adapters(arrivals, self.models, zipf, SEED)
            found = await self._open(client, f"zipf {zipf}", asks)
            record[f"zipf {zipf}"] = {"saturation": full, "open": found, **rarest_over_hottest(found)}
        rate = record[f"zipf {SKEWS[0]}"]["saturation"]["requests_per_s"]
        record["neighbour"] = await self._neighbour(client, rate)
        return record

    @property
    def sizes(self) -> Sizes:
        """Of every request."""
        return Sizes(self.bench.dims.request_prompt, self.bench.dims.open_answer)

    async def _saturation(self, client: Client, zipf: float) -> dict[str, Any]:
        dims = self.bench.dims
        count = min(4 * dims.streams, dims.open_requests)
        asks = name_adapters(poisson(1.0, count, self.sizes, SEED + 1), self.models, zipf, SEED + 1)
        phase = Phase(f"saturation, zipf {zipf}", count)
        await closed_loop(client, asks, dims.streams, phase, _HOOKS)
        return self._figures(phase, ("by_adapter", "by_decile", "by_rank", "by_start"))

    async def _open(self, client: Client, name: str, asks: Sequence[Ask]) -> dict[str, Any]:
        phase = Phase(name, len(asks))
        await open_loop(client, asks, phase, _HOOKS)
        return self._figures(phase, LEFT_OUT)

    async def _neighbour(self, client: Client, saturation: float) -> dict[str, Any]:
        """A polite tenant at LOAD of its share, alone and beside one at EXCESS times its own; all of them likewise."""
        share = saturation / TENANTS
        count = max(self.bench.dims.open_requests * 3 // 100, 4)
        polite = [self._stream(f"{POLITE}{number}", LOAD * share, count, number) for number in range(1, TENANTS)]
        seconds = polite[0][-1].at
        heavy = self._stream(HEAVY, EXCESS * share, round(EXCESS * share * seconds), 0)
        arms = {
            "alone": [polite[0]],
            "beside heavy": [polite[0], heavy],
            "all polite": polite,
            "all beside heavy": [*polite, heavy],
        }
        record: dict[str, Any] = {"share_per_s": round(share, 3), "polite_load": LOAD, "excess": EXCESS}
        for name, streams in arms.items():
            asks = sorted((ask for stream in streams for ask in stream), key=lambda ask: ask.at)
            phase = Phase(f"neighbour, {name}", len(asks))
            await open_loop(client, asks, phase, _HOOKS)
            record[name] = self._figures(phase, ("by_adapter", "by_decile", "by_rank", "by_start"))
            record[name]["by_tenant"] = by_group(phase.outcomes, lambda outcome: outcome.ask.group, SLO)
        first = f"{POLITE}1"
        ttft = {name: record[name]["by_tenant"][first]["ttft_ms"]["p99"] for name in arms}
        record["p99_over_alone"] = round(ttft["beside heavy"] / ttft["alone"], 3)
        record["p99_over_all_polite"] = round(ttft["all beside heavy"] / ttft["all polite"], 3)
        print(json.dumps({"ttft_p99_ms": ttft}), file=sys.stderr, flush=True)
        return record

    def _stream(self, tenant: str, rate: float, count: int, seed: int) -> list[Ask]:
        """One tenant's requests, over all adapters by the first skew."""
        asks = name_adapters(poisson(rate, count, self.sizes, SEED + seed), self.models, SKEWS[0], SEED + seed)
        return [
            replace(ask, group=tenant, model=replace(ask.model, headers=_headers(ask.model.version, tenant)))
            for ask in asks
        ]

    def _figures(self, phase: Phase, leave_out: Sequence[str]) -> dict[str, Any]:
        found = {
            name: value for name, value in phase_figures(phase, SLO, len(self.models)).items() if name not in leave_out
        }
        print(phase.name, json.dumps(found), file=sys.stderr, flush=True)
        if found["errors"]:
            raise BenchError(f"{phase.name}: {found['errors']}, such as {error_examples(phase.outcomes)}")
        return found

    def _target(self) -> Target:
        return Target(
            url=f"http://127.0.0.1:{self.server.port}",
            key=TOKEN,
            api="completions",
            ignore_eos=True,
            timeout_s=TIMEOUT_S,
            seed=SEED,
            vocabulary=min(151000, self.bench.config.shape.vocab),
        )

    def _port(self, number: int) -> Port:
        return Port(f"http://127.0.0.1:{number}", TOKEN)


_HOOKS = Hooks(start=lambda ask: "gpu", done=lambda outcome: None)


def rarest_over_hottest(figures: dict[str, Any]) -> dict[str, Any]:
    """The p99 of the time to the first token of the rarest tenth of the adapters over the most popular tenth's."""
    deciles = figures["by_decile"]
    hottest, rarest = deciles.get("1"), deciles.get("10")
    if hottest is None or rarest is None:
        return {"rarest_over_hottest": None}
    return {"rarest_over_hottest": round(rarest["ttft_ms"]["p99"] / hottest["ttft_ms"]["p99"], 3)}
