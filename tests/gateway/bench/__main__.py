"""`make bench-gateway`: what Envoy and the picker add to a request, against requests that go straight to the engines.

Both ways take turns in short blocks on one machine, so that what else runs there falls on both. A figure is the median
over the pairs of blocks.
"""

import argparse
import gc
import json
import os
import platform
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from tests.gateway.bench.load import Client, count_chunks, time_requests
from tests.gateway.bench.stage import ADAPTERS, ENGINES, Stage, set_stage
from tests.gateway.doubles.stack import make_key


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is measured. `block_seconds` is the length of a turn, `chunks` the events of a stream."""

    rates: tuple[int, ...] = (200, 500)
    pairs: int = 12
    block_seconds: float = 2.0
    streams: int = 64
    chunks: int = 500
    stream_pairs: int = 6


@dataclass(frozen=True, slots=True)
class Ways:
    """The two ways that take turns."""

    stage: Stage
    direct: Client
    gateway: Client


async def measure(settings: Settings) -> dict[str, Any]:
    """Run everything; returns the result with its details."""
    async with (
        set_stage() as stage,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=stage.trust)) as http,
    ):
        key = make_key("acme", "t")
        ways = Ways(stage, Client(http, stage.engines, key), Client(http, (stage.gateway,), key))
        for way in (ways.direct, ways.gateway):
            await time_requests(way, 50, 1.0)
        rates = {str(rate): await _compare_rate(ways, rate, settings) for rate in settings.rates}
        streams = await _compare_streams(ways, settings)
    return {"rates": rates, "streams": streams}


async def _compare_rate(ways: Ways, rate: int, settings: Settings) -> dict[str, float]:
    added: dict[str, list[float]] = {"p50": [], "p95": [], "direct_p50": [], "direct_p95": []}
    spent: defaultdict[str, float] = defaultdict(float)
    for pair in range(settings.pairs):
        both = {}
        for way in (("direct", "gateway"), ("gateway", "direct"))[pair % 2]:
            before = ways.stage.cpu_seconds()
            latencies = await time_requests(getattr(ways, way), rate, settings.block_seconds)
            both[way] = _percentiles(latencies)
            if way == "gateway":
                for name, cpu in ways.stage.cpu_seconds().items():
                    spent[name] += cpu - before[name]
        for index, name in enumerate(("p50", "p95")):
            added[name].append(both["gateway"][index] - both["direct"][index])
            added[f"direct_{name}"].append(both["direct"][index])
        print(f"{rate}/s: direct {both['direct']}, gateway {both['gateway']}", flush=True)
    requests = settings.pairs * int(rate * settings.block_seconds)
    return {
        "added_p50_ms": _median(added["p50"]),
        "added_p95_ms": _median(added["p95"]),
        "direct_p50_ms": _median(added["direct_p50"]),
        "direct_p95_ms": _median(added["direct_p95"]),
        **{f"{name}_cpu_ms": round(cpu * 1000 / requests, 3) for name, cpu in spent.items()},
    }


async def _compare_streams(ways: Ways, settings: Settings) -> dict[str, float]:
    ratios, direct, gateway = [], [], []
    for _ in range(settings.stream_pairs):
        direct.append(await count_chunks(ways.direct, settings.streams, settings.chunks))
        gateway.append(await count_chunks(ways.gateway, settings.streams, settings.chunks))
        ratios.append(gateway[-1] / direct[-1])
        print(f"{settings.streams} streams: direct {direct[-1]:.0f}/s, gateway {gateway[-1]:.0f}/s", flush=True)
    return {
        "ratio": _median(ratios),
        "direct_chunks_per_s": _median(direct),
        "gateway_chunks_per_s": _median(gateway),
    }


def _percentiles(latencies: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(latencies, n=20)
    return round(cuts[9], 3), round(cuts[18], 3)


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def _describe_machine() -> dict[str, Any]:
    scheduling = {os.SCHED_OTHER: "other", os.SCHED_RR: "round-robin real time", os.SCHED_FIFO: "fifo real time"}
    return {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "scheduling": scheduling[os.sched_getscheduler(0)],
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure, write the record if asked to, and print the summary last."""
    parser = argparse.ArgumentParser(prog="bench-gateway", description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the result with its settings")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks at each rate")
    arguments = parser.parse_args()
    settings = Settings(pairs=arguments.pairs)
    gc.collect()
    gc.freeze()  # this process measures: it should not look through all that it has imported for garbage meanwhile
    result = uvloop.run(measure(settings))
    if arguments.out:
        record = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": _describe_machine(),
            "settings": {**asdict(settings), "engines": ENGINES, "adapters": ADAPTERS},
            **result,
        }
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(summarize(result)))


def summarize(result: dict[str, Any]) -> dict[str, Any]:
    """The last line of output, from what `measure` returned."""
    names = ("added_p50_ms", "added_p95_ms")
    rates = {rate: {name: found[name] for name in names} for rate, found in result["rates"].items()}
    return {"rates": rates, "stream_ratio": result["streams"]["ratio"]}


if __name__ == "__main__":
    main()
