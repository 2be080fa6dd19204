"""The simulated day of docs/planner.md: `make simulate-day` writes its chart and its figures.

An Azure-shaped trace over a pool of 30 tenants and 90 adapters, with a shift of popularity, the loss of a replica and
a tenant that becomes heavy, against hashing and all-on-all on as many GPUs.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lorafleet_contracts.resources.adapter import LoraAdapterSpec, LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolSpec, LoraPoolStatus
from lorafleet_contracts.resources.tenant import TenantSpec, TenantStatus
from lorafleet_operator.core.snapshot import Adapter, Meta, Pool, Tenant
from lorafleet_operator.simulation.arms import ArmOutcome, run_arm
from lorafleet_operator.simulation.batch import step_time
from lorafleet_operator.simulation.charts import Panel, draw
from lorafleet_operator.simulation.demand import Ranks, assume_files, find_demand, members_of
from lorafleet_operator.simulation.engines import EngineProfile
from lorafleet_operator.simulation.hardware import find_shape, replica_memory
from lorafleet_operator.simulation.measures import Outcome
from lorafleet_operator.simulation.run import Case, Loss, simulate
from lorafleet_operator.simulation.trace import DAY_SECONDS, azure_day
from lorafleet_operator.simulation.traffic import Burst, Shift, add_burst, overlay

HOUR = 3600.0
TENANTS, ADAPTERS = 30, 90
RATE = 10.0
BASE_CAPACITY, CAPACITY = 10.0, 8.0
RANKS = (16, 32, 64, 128)
SHIFT = Shift(10 * HOUR, 30)
LOSS = Loss(12 * HOUR, 0)
HEAVY = Burst("team-20/tenant", 16 * HOUR, 20 * HOUR, 7.5)
MARKS = (
    (SHIFT.at, "shift"),
    (LOSS.at, "loss"),
    (HEAVY.start, "heavy"),
    (HEAVY.end, "calm"),
)
SAMPLE_SECONDS = 300.0


def make_case(seed: int = 0, seconds: float = DAY_SECONDS, rate: float = RATE) -> Case:
    """The day, or its first `seconds`."""
    pool, adapters, tenants = _objects()
    namespaces: dict[str, dict[str, str]] = {f"team-{number:02d}": {} for number in range(TENANTS)}
    demand = find_demand(adapters, tenants, namespaces)
    random = np.random.default_rng(seed)
    arrivals = overlay(azure_day(rate, random, seconds), demand.groups, 1.0, random, (SHIFT,))
    if seconds > HEAVY.start:
        arrivals = add_burst(arrivals, HEAVY, demand.callers, random)
    assert pool.spec is not None
    shape = find_shape(pool.spec).shape
    ranks = {
        f"{each.meta.namespace}/{each.meta.name}": RANKS[number % len(RANKS)] for number, each in enumerate(adapters)
    }
    files = assume_files(pool.spec, adapters, shape, Ranks(16, ranks), {})
    members = members_of(demand.callers, arrivals, files)
    return Case(
        pool=pool,
        adapters=adapters,
        tenants=tenants,
        namespaces=namespaces | {"serving": {}},
        files=files,
        profile=EngineProfile(
            pool.spec.base_model.name,
            replica_memory(pool.spec, shape, "h100"),
            step_time(CAPACITY, BASE_CAPACITY, float(np.mean(arrivals.completion_tokens)), members),
        ),
        callers=demand.callers,
        arrivals=arrivals,
        seconds=seconds,
        losses=(LOSS,) if seconds > LOSS.at else (),
        sample_seconds=SAMPLE_SECONDS,
        replicas=3,
    )


def summarise(outcome: Outcome, rivals: Mapping[str, ArmOutcome], seconds: float) -> dict[str, Any]:
    """The day in figures."""
    requests = sum(outcome.callers.requests)
    gpus = [each.gpus for each in outcome.samples]
    return {
        "requests": requests,
        "gpus": {"most": max(gpus), "mean": round(sum(gpus) / len(gpus), 2), "dedicated": TENANTS},
        "cold_load_share": {
            "ours": round(sum(outcome.callers.cold) / requests, 5),
            **{name: round(each.cold_share, 5) for name, each in rivals.items()},
        },
        "unserved_share": round(sum(outcome.callers.unserved) / requests, 6),
        "broken_by_the_loss": {"ours": outcome.broken, **{name: each.broken for name, each in rivals.items()}},
        "moves_per_hour": round(outcome.loads / (seconds / HOUR), 2),
        "wait_p99_s": {
            "ours": round(outcome.wait[1], 3),
            **{name: round(each.wait_p99, 3) for name, each in rivals.items()},
        },
        "promotions": [
            {"hour": round(each.at / HOUR, 2), "tenant": each.tenant, "stage": each.stage, "message": each.message}
            for each in outcome.stages
        ],
    }


def draw_day(outcome: Outcome, rivals: Mapping[str, ArmOutcome]) -> str:
    """The chart."""
    samples = outcome.samples
    times = [each.at for each in samples]
    names = sorted({name for each in samples for name in each.sets}, reverse=True)
    shares = {"LoraFleet": [_share(each.cold + each.unserved, each.requests) for each in samples]}
    for name, label in (("hash", "hashing"), ("all", "all on all")):
        shares[label] = [_share(cold, each.requests) for cold, each in zip(rivals[name].cold, samples, strict=True)]
    return draw(
        [
            Panel(
                "Requests", "per second", times, {"": [each.requests / SAMPLE_SECONDS for each in samples]}, marks=MARKS
            ),
            Panel(
                "GPUs by set",
                "GPUs",
                times,
                {},
                areas={name: [float(each.sets.get(name, 0)) for each in samples] for name in names},
            ),
            Panel("Requests that find their adapter off the GPU", "%", times, shares),
            Panel(
                "Loads that the operator asks for", "per 5 min", times, {"": [float(each.loads) for each in samples]}
            ),
        ]
    )


def main(words: Sequence[str] | None = None) -> int:
    """Simulate, write both files, print the figures."""
    parser = argparse.ArgumentParser(prog="python -m lorafleet_operator.simulation.day", description=__doc__)
    parser.add_argument("--chart", type=Path, required=True, help="an SVG file")
    parser.add_argument("--figures", type=Path, required=True, help="a JSON file")
    parser.add_argument("--hours", type=float, default=24.0, help="the first hours only")
    arguments = parser.parse_args(words)
    seconds = arguments.hours * HOUR
    case = make_case(seconds=seconds)
    outcome = simulate(case)
    rivals = {name: run_arm(case, outcome.samples, name) for name in ("hash", "all")}
    figures = summarise(outcome, rivals, seconds)
    arguments.chart.write_text(draw_day(outcome, rivals))
    arguments.figures.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures))
    return 0


def _share(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0


def _objects() -> tuple[Pool, tuple[Adapter, ...], tuple[Tenant, ...]]:
    """A pool on H100s that grows with its load, three adapters a tenant; popular ones belong to different tenants."""
    spec = {
        "baseModel": {"name": "qwen2.5-7b", "source": {"uri": "https://models.example/qwen2.5-7b"}},
        "engine": {"memory": {"hostCache": "64Gi"}, "pod": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}},
        "replicas": {"min": 2, "max": 12},
        "allowedNamespaces": {"from": "All"},
        "sources": {"allow": [{"prefix": "https://models.example/"}]},
    }
    ref = {"name": "qwen", "namespace": "serving"}
    pool = Pool(_meta("serving", "qwen"), LoraPoolSpec.model_validate(spec), LoraPoolStatus())
    adapters = []
    for number in range(ADAPTERS):
        namespace = f"team-{number % TENANTS:02d}"
        source = {"uri": f"https://models.example/{namespace}/{number:03d}"}
        wanted = LoraAdapterSpec.model_validate({"poolRef": ref, "source": source})
        adapters.append(Adapter(_meta(namespace, f"a{number:03d}"), ("serving", "qwen"), wanted, LoraAdapterStatus()))
    rights = TenantSpec.model_validate({"poolRef": ref, "adapters": {"selector": {}}})
    tenants = (
        Tenant(_meta(f"team-{number:02d}", "tenant"), ("serving", "qwen"), rights, TenantStatus())
        for number in range(TENANTS)
    )
    return pool, tuple(adapters), tuple(tenants)


def _meta(namespace: str, name: str) -> Meta:
    return Meta(namespace, name, f"{namespace}.{name}", 1, "2026-01-01T00:00:00Z")


if __name__ == "__main__":
    sys.exit(main())
