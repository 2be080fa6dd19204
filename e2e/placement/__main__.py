"""`python -m e2e.placement`: placement by popularity against hashing and all-on-all, and how long a large plan takes.

Prints what it does and, last, one line of JSON. Ends with status 1 when a bar is missed (docs/placement.md).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

from e2e.placement.arms import ARMS, Ours, most_in_an_hour
from e2e.placement.run import SLICE_SECONDS, Outcome, run
from e2e.placement.trace import EVEN_SHARE, RANKS, Setting, make_trace
from lorafleet_operator.core.placement import place
from lorafleet_operator.core.places import Bin, Item, Policy
from lorafleet_operator.simulation.charts import Panel, draw

SKEWS = (1.0, 0.1)
SEEDS = (31, 32, 33, 34)
"""None of those on which placement's constants were chosen (docs/placement.md)."""
MOVES_PER_HOUR = 60
PEAK_BAR = 1.05
PLAN_BAR_SECONDS = 1.0
Figures = dict[str, dict[str, float]]


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m e2e.placement", description=__doc__)
    parser.add_argument("--record", type=Path, help="write settings, date and all figures to this file")
    parser.add_argument("--chart", type=Path, help="draw the runs into this SVG file")
    given = parser.parse_args()
    runs: dict[float, dict[int, dict[str, Outcome]]] = {skew: {} for skew in SKEWS}
    moves = 0
    settings = [Setting(skew, seed=seed) for skew in SKEWS for seed in SEEDS]
    with ProcessPoolExecutor() as pool:
        for setting, (outcomes, made) in zip(settings, pool.map(_compare, settings), strict=True):
            _tell(setting, outcomes, made)
            runs[setting.zipf][setting.seed] = outcomes
            moves = max(moves, made)
    fresh, again = _time_plans()
    print(
        f"== 10,000 adapters on 100 replicas: {fresh:.2f} s of one core from nothing, {again:.2f} s again", flush=True
    )
    figures = {str(skew): _means(found.values()) for skew, found in runs.items()}
    by_seed = {str(skew): {seed: _means([each]) for seed, each in found.items()} for skew, found in runs.items()}
    ranges = {skew: _range(found.values()) for skew, found in by_seed.items()}
    result = {"zipf": figures, "moves_per_hour": moves, "plan_10k_x_100_s": round(fresh, 3)}
    result |= {"seeds": SEEDS, "cold_loads_against_hash": ranges, "by_seed": by_seed}
    if given.record:
        drawn = {
            str(skew): {name: asdict(each) for name, each in found[SEEDS[0]].items()} for skew, found in runs.items()
        }
        record = _circumstances() | {"result": result, "replan_10k_x_100_s": round(again, 3), "drawn": drawn}
        given.record.write_text(json.dumps(record, indent=1) + "\n")
    if given.chart:
        given.chart.write_text(draw(_panels({skew: found[SEEDS[0]] for skew, found in runs.items()})))
    missed = _missed(by_seed, figures, moves, fresh)
    for each in missed:
        print(f"MISSED: {each}", file=sys.stderr)
    print(json.dumps(result))
    return 1 if missed else 0


def _compare(setting: Setting) -> tuple[dict[str, Outcome], int]:
    """All arms on one trace, and the moves of ours in its busiest hour."""
    trace, outcomes, moves = make_trace(setting), {}, 0
    for name, build in ARMS.items():
        arm = build(trace, setting)
        outcomes[name] = run(arm, trace, setting)
        if isinstance(arm, Ours):
            moves = most_in_an_hour(arm.moves)
    return outcomes, moves


def _tell(setting: Setting, outcomes: Mapping[str, Outcome], moves: int) -> None:
    print(
        f"== Zipf {setting.zipf}, seed {setting.seed}: {setting.adapters} adapters, {setting.replicas} replicas, "
        f"{moves} moves in an hour"
    )
    for name, outcome in outcomes.items():
        print(
            f"   {name}: {outcome.cold_loads} of {outcome.requests} requests met a cold adapter, busiest replica "
            f"{outcome.peak_load_ratio:.3f} of the mean",
            flush=True,
        )


def _means(runs: Iterable[Mapping[str, Outcome]]) -> Figures:
    """Cold loads and peaks of every arm, in the mean of these runs."""
    every = list(runs)
    return {
        "cold_loads": {arm: round(mean(each[arm].cold_loads for each in every)) for arm in ARMS},
        "peak_load_ratio": {arm: round(mean(each[arm].peak_load_ratio for each in every), 4) for arm in ARMS},
    }


def _range(found: Iterable[Figures]) -> list[float]:
    """The least and the most of our cold loads over hashing's, less one."""
    ratios = [each["cold_loads"]["ours"] / each["cold_loads"]["hash"] - 1 for each in found]
    return [round(min(ratios), 4), round(max(ratios), 4)]


def _time_plans() -> tuple[float, float]:
    """Seconds of one core (processor time) to place 10,000 adapters on 100 replicas from nothing, and once they are."""
    trace = make_trace(Setting(1.0, adapters=10_000, replicas=100, warm=60.0, measured=60.0))
    items = [Item(f"a{number}", "", size, 1, load=1 / (1 + number)) for number, size in enumerate(trace.sizes)]
    bins = [Bin(f"r{number}", trace.budget, host=sum(trace.sizes)) for number in range(100)]
    begun = time.process_time()
    placement = place(items, bins, Policy(redundancy=1, moves=1))
    fresh = time.process_time() - begun
    placed = [
        replace(
            each,
            holders=frozenset(choice.replica for choice in placement.placed[each.key].choices),
            reasons={choice.replica: choice.reason for choice in placement.placed[each.key].choices},
            asked={choice.replica: choice.tier for choice in placement.placed[each.key].choices},
        )
        for each in items
    ]
    begun = time.process_time()
    place(placed, bins, Policy(redundancy=1, moves=1))
    return fresh, time.process_time() - begun


def _missed(
    by_seed: Mapping[str, Mapping[int, Figures]], means: Mapping[str, Figures], moves: int, seconds: float
) -> list[str]:
    """The bars of cold loads hold for the mean over the seeds, those of peaks for each."""
    missed = []
    for skew, found in means.items():
        cold = found["cold_loads"]
        missed += [f"Zipf {skew}: cold loads not below {arm}" for arm in ("hash", "all") if cold["ours"] >= cold[arm]]
        for seed, each in by_seed[skew].items():
            peak = each["peak_load_ratio"]
            if peak["ours"] >= peak["hash"]:
                missed.append(f"Zipf {skew}, seed {seed}: peak load ratio not below hash")
            if peak["ours"] > PEAK_BAR * peak["all"]:
                missed.append(f"Zipf {skew}, seed {seed}: peak load ratio above {PEAK_BAR} x all")
    if moves > MOVES_PER_HOUR:
        missed.append(f"more than {MOVES_PER_HOUR} moves in an hour")
    if seconds > PLAN_BAR_SECONDS:
        missed.append(f"a plan takes more than {PLAN_BAR_SECONDS} s")
    return missed


def _panels(runs: Mapping[float, Mapping[str, Outcome]]) -> list[Panel]:
    panels = []
    for skew, outcomes in runs.items():
        slices = len(next(iter(outcomes.values())).cold_share)
        times = [SLICE_SECONDS * (1 + number) for number in range(slices)]
        cold = {name: [100 * each for each in found.cold_share] for name, found in outcomes.items()}
        ratio = {name: found.load_ratio for name, found in outcomes.items()}
        marks = ((Setting(skew).warm, "measured from here"),)
        panels.append(Panel(f"Zipf {skew}: requests that meet a cold adapter", "%", times, cold, marks=marks))
        panels.append(
            Panel(f"Zipf {skew}: busiest replica over the mean, by 10 minutes", "", times, ratio, marks=marks)
        )
    return panels


def _circumstances() -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True)
    settings = asdict(Setting(0.0)) | {"ranks": RANKS, "budget_of_even_share": EVEN_SHARE}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "commit": commit.stdout.strip() or "unknown",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),
        "settings": {key: each for key, each in settings.items() if key not in ("zipf", "seed")},
    }


if __name__ == "__main__":
    sys.exit(main())
