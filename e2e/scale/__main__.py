"""`python -m e2e.scale`: how fast, with how many writes and at what cost the operator brings many adapters to Ready.

Prints what it does and, last, one line of JSON. Ends with status 1 when something does not converge in time.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from e2e.cluster.apiserver import ApiServer, start_apiserver, stop_apiserver
from e2e.cluster.paths import find_cache
from e2e.scale.fleet import PACE, Watcher, create, name_of, start_engines, stock, traffic, wait_until
from lorafleet_kube.access import load_access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_kube.paths import NAMESPACES
from tests.support.operator_process import OperatorProcess, Usage
from tests.support.stub_engine import StubEngine
from tests.support.team import Team, install_crds

SETTLE_SECONDS = 10.0
CHURN_PERCENT = 1
SYSTEM, SERVING = "lorafleet-system", "serving"
KILL_BAR_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Options:
    """What to run: `limit` is how many seconds convergence may take before the run is given up."""

    adapters: int
    engines: int
    steady: float
    limit: float


@dataclass(slots=True)
class Run:
    """One fleet with a running operator."""

    options: Options
    team: Team
    operator: OperatorProcess
    engines: list[StubEngine]
    watcher: Watcher
    lives: list[Usage] = field(default_factory=list)

    def progress(self) -> str:
        """Where it is."""
        return (
            f"{len(self.watcher.ready)} of {len(self.watcher.adapters)} ready, operator {self.cpu():.0f} CPU s, "
            f"{self.peak():.0f} MB, {len(self.lives)} restarts"
        )

    def cpu(self) -> float:
        """CPU seconds of the operator in all its lives."""
        return self.operator.usage().cpu_seconds + sum(each.cpu_seconds for each in self.lives)

    def peak(self) -> float:
        """The most memory (MiB) that any life has taken."""
        return max(each.peak_rss_mb for each in (self.operator.usage(), *self.lives))

    async def supervise(self) -> None:
        """Start the operator again when it ends, as the kubelet does. Cancel to stop."""
        while True:
            usage = self.operator.usage()
            await asyncio.sleep(1)
            if self.operator.ended:
                self.lives.append(usage)
                self.operator.start()

    def all_ready(self) -> bool:
        """Whether every adapter that exists is Ready and resident exactly where the engines should have it."""
        return len(self.watcher.ready) == len(self.watcher.adapters)

    def resident(self) -> int:
        """Versions in the engines' memories, all together."""
        return sum(len(engine.resident()) for engine in self.engines)


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m e2e.scale", description=__doc__)
    parser.add_argument("--adapters", type=int, default=1000)
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--steady", type=float, default=30.0, help="seconds to count writes in once all is Ready")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds to wait for convergence at most")
    parser.add_argument("--record", type=Path, help="append the result, with date, commit and machine, to this file")
    given = parser.parse_args()
    options = Options(given.adapters, given.engines, given.steady, given.limit)
    with _apiserver() as server:
        result = asyncio.run(_measure(server, options))
    if given.record:
        with given.record.open("a") as record:
            record.write(json.dumps(_circumstances(options) | result) + "\n")
    print(json.dumps(result))
    return 0


def _circumstances(options: Options) -> dict[str, object]:
    """What a figure is worth nothing without; `load` is how many processes wanted a core in the last five minutes."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "commit": commit.stdout.strip() or "unknown",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),
        "steady_s": options.steady,
        "pace": asdict(PACE),
    }


@contextmanager
def _apiserver() -> Iterator[ApiServer]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield start_apiserver(find_cache(), Path(folder), die_with_parent=True)
        finally:
            stop_apiserver(Path(folder))


async def _measure(server: ApiServer, options: Options) -> dict[str, object]:
    install_crds(server)
    async with connect(await load_access(str(server.kubeconfig))) as api, _fleet(server, api, options) as run:
        print(f"== {options.adapters} adapters on {options.engines} engines", flush=True)
        ready = await _converge(run)
        cpu = run.cpu()
        writes = run.watcher.of("LoraAdapter")
        print(f"   ready after {ready:.1f} s, {run.progress()}", flush=True)
        print(f"   most writes: {run.watcher.busiest()}", flush=True)
        steady = await _count_steady_writes(run)
        recovery = await _kill_and_recover(run)
        return {
            "adapters": options.adapters,
            "engines": options.engines,
            "ready_s": round(ready, 1),
            "writes_per_adapter": max(writes) - 1,
            "steady_writes_per_s": round(steady, 3),
            "cpu_s": round(cpu, 1),
            "rss_mb": round(run.peak()),
            "mean_writes_per_adapter": round(sum(writes) / len(writes) - 1, 2),
            "recovery_s": round(recovery, 1),
        }


@asynccontextmanager
async def _fleet(server: ApiServer, api: KubeApi, options: Options) -> AsyncIterator[Run]:
    async with AsyncExitStack() as stack:  # ends the engines; the objects go with the API server
        for namespace in (SYSTEM, SERVING):
            await api.request("POST", NAMESPACES.path(), body={"metadata": {"name": namespace}})
        team = Team(api, SERVING, stack)
        operator = OperatorProcess(server.kubeconfig, SYSTEM, LORAFLEET_LOG_LEVEL="WARNING")
        operator.start()
        try:
            await team.pool(replicas={"min": options.engines})
            await team.settle_set()
            engines = await start_engines(team, options.engines)
            stock(engines, options.adapters * 2)
            await team.condition("LoraPool", "smol", "Ready", "True")
            watcher = Watcher()
            watching = [asyncio.create_task(each.run()) for each in watcher.reflectors(api, SERVING, SYSTEM)]
            run = Run(options, team, operator, engines, watcher)
            watching.append(asyncio.create_task(run.supervise()))
            yield run
            for task in watching:
                task.cancel()
        finally:
            operator.stop()
            print(operator.log, file=sys.stderr)


async def _converge(run: Run) -> float:
    """Create everything at once; returns the seconds from the first creation to the last Ready."""
    started = time.monotonic()
    creating = asyncio.create_task(create(run.team, range(run.options.adapters)))

    def done() -> bool:
        return creating.done() and len(run.watcher.ready) == run.options.adapters

    await wait_until(done, run.options.limit, run.progress)
    creating.result()
    return time.monotonic() - started


async def _count_steady_writes(run: Run) -> float:
    """Writes a second to anything of ours, Lease included, while the engines are under traffic and nothing changes."""
    busy = asyncio.create_task(traffic(run.engines))
    await asyncio.sleep(SETTLE_SECONDS)
    run.watcher.writes.clear()
    cpu, polls = run.cpu(), sum(each.polls for each in run.engines)
    await asyncio.sleep(run.options.steady)
    busy.cancel()
    counts = {kind: sum(run.watcher.of(kind)) for kind in ("LoraAdapter", "LoraPool", "Tenant", "StatefulSet", "Lease")}
    cpu = run.cpu() - cpu
    polls = sum(each.polls for each in run.engines) - polls
    print(f"   steady for {run.options.steady:.0f} s: writes {counts}, {cpu:.1f} CPU s, {polls} polls", flush=True)
    return sum(counts.values()) / run.options.steady


async def _kill_and_recover(run: Run) -> float:
    """SIGKILL the operator, change the world while it is gone, start it; returns seconds from the kill to convergence.

    An engine loses its memory, 1 % of the adapters are deleted and as many made.
    """
    churn = max(1, run.options.adapters * CHURN_PERCENT // 100)
    run.lives.append(run.operator.usage())
    run.operator.kill()
    killed = time.monotonic()
    run.engines[0].restart()
    run.operator.start()
    for index in range(churn):
        await run.team.delete("LoraAdapter", name_of(index))
    await create(run.team, range(run.options.adapters + 1, run.options.adapters + 1 + churn))

    def converged() -> bool:
        return run.all_ready() and run.resident() == run.options.adapters

    await wait_until(converged, KILL_BAR_SECONDS, lambda: f"{run.progress()}, {run.resident()} resident")
    took = time.monotonic() - killed
    print(f"   {took:.1f} s from the kill to convergence", flush=True)
    return took


if __name__ == "__main__":
    sys.exit(main())
