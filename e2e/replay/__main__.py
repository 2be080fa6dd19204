"""`make replay`: sends a trace to the quickstart's pool, simulates the same trace, writes both with their difference.

What steps take is found by asking for the same mix of adapters with few and with many requests at a time, as fast as
answers come, before the run and after it, as the machine may not do the same all the time. In between requests arrive
open-loop at 60 % of what many at a time had. The planner is given the mean of both.
The figures go to docs/planner-replay.json; docs/planner.md quotes them.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openai

from e2e.assets.styles import UNSEEN
from e2e.client import Client
from e2e.cluster.paths import REPOSITORY
from e2e.engines import engine_states
from e2e.fleet import DEMO, NAMESPACE, Fleet, find_fleet, forwarded
from e2e.quickstart import apply_quickstart, create_keys
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_operator.cli.manifests import choose_pool, read_manifests
from lorafleet_operator.cli.rates import Look, measure
from lorafleet_operator.core.capability import Capacity
from lorafleet_operator.simulation.batch import StepTime
from lorafleet_operator.simulation.demand import Ranks, assume_files, find_demand
from lorafleet_operator.simulation.engines import EngineProfile
from lorafleet_operator.simulation.hardware import find_shape, replica_memory
from lorafleet_operator.simulation.measures import Outcome
from lorafleet_operator.simulation.run import Case, simulate
from lorafleet_operator.simulation.traffic import Arrivals, overlay, plain, poisson_times

FIGURES = REPOSITORY / "docs" / "planner-replay.json"
TOKENS, PROMPT_TOKENS = 16, 40
PROBE_SECONDS, RUN_SECONDS = 40.0, 180.0
SHARE = 0.6
REPLICAS = 2
"""Of the quickstart."""
FEW, MANY = 2, 16
"""Requests at a time: one, and eight, a replica."""
MOST = 64
"""Requests in a step; there are never so many."""
Ask = Callable[[int], bool]
"""Sends the request of a row of the trace and waits for the answer; False where it failed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request of the real run: its latency in seconds, None where it failed."""

    seconds: float | None


def main() -> int:
    """Run, simulate, compare, write."""
    fleet = find_fleet()
    fleet.install()
    apply_quickstart(fleet)
    keys = create_keys(fleet)
    fleet.wait_ready()
    with forwarded(fleet.kubectl, "svc/lorafleet-gateway", 8080, NAMESPACE) as address:
        clients = {"acme": Client(address, keys.acme), "globex": Client(address, keys.globex)}
        ask = _asking(clients, _case(_objects(fleet), rate=float(MANY)))
        before = _probe(ask)
        # Looked at now: what the probe made popular has got its copies.
        case = _case(_objects(fleet), SHARE * before[1])
        answered, seen = _send(fleet, _asking(clients, case), case)
        after = _probe(ask)
    step = _step(*np.mean([before, after], axis=0))
    case = replace(case, profile=replace(case.profile, step=step), capacity=_capacity(step))
    figures = {"probed_per_s": {"few": [before[0], after[0]], "many": [before[1], after[1]]}}
    figures |= _compare(case, simulate(case), answered, seen)
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures))
    return 0


def _objects(fleet: Fleet) -> str:
    """Pool, adapters and tenants as they are now."""
    return fleet.kubectl.run("get", "lorapools,loraadapters,tenants", "-n", DEMO, "-o", "json")


def _asking(clients: Mapping[str, Client], case: Case) -> Ask:
    """Asks for what the rows of a case's trace ask for."""
    names = {each.meta.uid: each.meta.name for each in case.adapters}

    def ask(row: int) -> bool:
        caller = case.callers[case.arrivals.callers[row % len(case.arrivals)]]
        try:
            client = clients[caller.tenant.rpartition("/")[2]]
            client.ask(names[caller.adapter], UNSEEN[row % len(UNSEEN)], tokens=TOKENS)
        except openai.APIError:
            return False
        return True

    return ask


def _probe(ask: Ask) -> tuple[float, float]:
    """Answers a second with few and with many at a time."""
    return _rate(ask, FEW), _rate(ask, MANY)


def _rate(ask: Ask, at_once: int) -> float:
    """Answers a second when the next request follows each answer at once; what runs at the end is waited for."""
    begun = time.monotonic()
    rows = iter(range(1_000_000))

    def keep_on(_: int) -> int:
        done = 0
        while time.monotonic() < begun + PROBE_SECONDS:
            done += ask(next(rows))
        return done

    with ThreadPoolExecutor(at_once) as pool:
        rate = sum(pool.map(keep_on, range(at_once))) / (time.monotonic() - begun)
    assert rate, "the pool does not answer"
    return round(rate, 3)


def _step(few: float, many: float) -> StepTime:
    """A replica's steps, by the answers a second that all replicas gave; each reads its prompt in one of them."""
    one, full = (at_once / (rate * TOKENS) for at_once, rate in ((FEW, few), (MANY, many)))
    slope = min(max((full - one) * REPLICAS / (MANY - FEW), 0.0), one)
    return StepTime(one - slope * FEW / REPLICAS, slope, 0.0, MOST)


def _capacity(step: StepTime) -> Capacity:
    """What the operator of the cluster would have measured."""
    full = MANY // REPLICAS
    return Capacity(full / (step.seconds_of(full, 0) * TOKENS), None, 0, measured=True)


def _case(text: str, rate: float) -> Case:
    """The cluster's own objects as a case of the planner, asked `rate` times a second."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.json"
        path.write_text(text)
        manifests = read_manifests(path)
    pool, adapters, tenants = choose_pool(manifests, "smol")
    demand = find_demand(adapters, tenants, manifests.namespaces)
    random = np.random.default_rng(7)
    arrivals = plain(poisson_times(rate, RUN_SECONDS, random))
    lengths = (np.full(len(arrivals), PROMPT_TOKENS), np.full(len(arrivals), TOKENS))
    arrivals = overlay(Arrivals(arrivals.times, *lengths, arrivals.callers), demand.groups, 1.0, random)
    assert pool.spec is not None
    shape = find_shape(pool.spec).shape
    memory = replica_memory(pool.spec, shape, None)
    return Case(
        pool=pool,
        adapters=adapters,
        tenants=tenants,
        namespaces=manifests.namespaces,
        files=assume_files(pool.spec, adapters, shape, Ranks(16, {}), manifests.known),
        profile=EngineProfile(pool.spec.base_model.name, memory, StepTime(0.0, 0.0, 0.0, MOST)),
        callers=demand.callers,
        arrivals=arrivals,
        seconds=RUN_SECONDS,
        held=_held(manifests.known),
    )


def _held(known: Mapping[str, LoraAdapterStatus]) -> dict[str, list[str]]:
    """Adapters by the replica that has them, as their statuses say."""
    held: dict[str, list[str]] = {}
    for uid, status in known.items():
        for place in status.placements:
            held.setdefault(place.replica, []).append(uid)
    return held


def _send(fleet: Fleet, ask: Ask, case: Case) -> tuple[list[Answered], dict[str, Any]]:
    """Send every request at its moment, and look at the engines' counters before and after."""
    before = Look(time.monotonic(), engine_states(fleet))
    start = time.monotonic()

    def send(row: int) -> Answered:
        began = start + float(case.arrivals.times[row])
        time.sleep(max(began - time.monotonic(), 0.0))
        return Answered(time.monotonic() - began if ask(row) else None)

    with ThreadPoolExecutor(64) as pool:
        answered = list(pool.map(send, range(len(case.arrivals))))
    return answered, measure(before, Look(time.monotonic(), engine_states(fleet)))


def _compare(case: Case, outcome: Outcome, answered: Sequence[Answered], seen: dict[str, Any]) -> dict[str, Any]:
    seconds = [each.seconds for each in answered if each.seconds is not None]
    step = case.profile.step
    rates = [each["requests_per_s"] for each in seen["replicas"]]
    real = {
        "replicas": len(rates),
        "failed": sum(each.seconds is None for each in answered),
        "off_gpu": sum(each["replicas"].get("gpu", 0) == 0 for each in seen["adapters"] if "/" in each["adapter"]),
        "busiest_replica_share": round(max(rates) / max(sum(rates), 1e-9), 3),
        "mean_latency_s": round(float(np.mean(seconds)), 3),
        "p90_latency_s": round(float(np.percentile(seconds, 90)), 3),
    }
    planned = {
        "replicas": outcome.samples[-1].gpus,
        "failed": sum(outcome.callers.unserved),
        "off_gpu": sum(tier != "gpu" for tier in outcome.tiers.values()),
        "busiest_replica_share": round(max(outcome.served.values()) / sum(outcome.served.values()), 3),
        "mean_latency_s": round(outcome.latency[0], 3),
        "p90_latency_s": round(outcome.latency[1], 3),
    }
    return {
        "requests": len(answered),
        "requests_per_s": round(len(answered) / RUN_SECONDS, 3),
        "step": {"fixed_s": round(step.fixed, 4), "per_request_s": round(step.per_sequence, 4)},
        "load": round(os.getloadavg()[1], 1),
        "real": real,
        "planned": planned,
        "error": {name: round(planned[name] - real[name], 3) for name in real},
    }


if __name__ == "__main__":
    sys.exit(main())
