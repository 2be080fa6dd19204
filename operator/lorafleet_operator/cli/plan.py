"""`lorafleet plan`: what a pool's manifests will need, by running the operator's own decisions over simulated time.

Called by the `lorafleet` command. Talks to no cluster.
"""

import argparse
import csv
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lorafleet_contracts.capacity import BaseDoesNotFitError, ShardError
from lorafleet_operator.cli.manifests import ManifestError, choose_pool, read_manifests
from lorafleet_operator.cli.output import add_output_option, fail, print_json, print_table, share
from lorafleet_operator.simulation import hardware, trace
from lorafleet_operator.simulation.demand import Demand, NothingToPlanError, Ranks, find_demand
from lorafleet_operator.simulation.forecast import Forecast, Terms, forecast
from lorafleet_operator.simulation.traffic import Arrivals, even_times, overlay, plain

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_RPS = Fraction(10)
SHOWN = 10
"""Adapters in each part of the table at most; JSON has all."""


class ReportError(Exception):
    """What draws charts is not installed."""


REFUSALS = (
    ReportError,
    ManifestError,
    trace.TraceError,
    hardware.HardwareError,
    NothingToPlanError,
    BaseDoesNotFitError,
    ShardError,
    OSError,
)


def register(subparsers: "Subparsers") -> None:
    """Add `lorafleet plan`."""
    parser = subparsers.add_parser("plan", help="simulate a pool's manifests with the operator's own decisions")
    parser.add_argument("-f", "--filename", type=Path, required=True, metavar="PATH", help="a YAML file or a folder")
    parser.add_argument("--pool", metavar="[NAMESPACE/]NAME", help="which LoraPool, where there are several")
    parser.add_argument("--max-gpus", type=int, metavar="N", help="exit with 1 when more are needed")
    parser.add_argument("--report", type=Path, metavar="HTML", help="write a page with charts, too (lorafleet[report])")
    add_output_option(parser)
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument("--rps", type=_positive, help="mean requests per second (default: 10, or those of --trace)")
    traffic.add_argument("--hours", type=_positive, default=Fraction(1), help="how long --rps lasts (default: 1)")
    traffic.add_argument("--trace", type=Path, metavar="CSV", help="requests as in the Azure LLM inference datasets")
    traffic.add_argument("--zipf", type=_not_negative, default=Fraction(1), metavar="S", help="skew (default: 1.0)")
    traffic.add_argument("--seed", type=int, default=0, help="another one draws other requests (default: 0)")
    replica = parser.add_argument_group("one replica")
    gpus = ", ".join(sorted(hardware.GPU_BYTES))
    replica.add_argument("--gpu", choices=sorted(hardware.GPU_BYTES), metavar="NAME", help=f"one of {gpus}")
    replica.add_argument("--capacity-rps", type=_positive, help="requests per second that it serves without adapters")
    replica.add_argument("--penalty", type=_penalty, help="the share of that which adapters cost, as 0.2")
    replica.add_argument("--model-config", type=Path, metavar="JSON", help="the base's config.json (for its sizes)")
    replica.add_argument("--rank", type=int, default=16, help="of adapters without a status (default: 16)")
    replica.add_argument("--ranks", type=Path, metavar="CSV", help="lines of NAMESPACE/NAME,RANK for some of them")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        found = _forecast(arguments)
        if arguments.report:
            _write_report(arguments.report, found)
    except REFUSALS as error:
        return fail(error)
    if arguments.output == "json":
        print_json(found.wire())
    else:
        _print(found)
    if arguments.max_gpus is not None and found.gpus > arguments.max_gpus:
        over = found.gpus - arguments.max_gpus
        return fail(f"pool {found.pool} needs {found.gpus} GPUs, {over} more than --max-gpus {arguments.max_gpus}")
    return 0


def _write_report(path: Path, found: Forecast) -> None:
    try:
        from lorafleet_operator.cli.report import render
    except ModuleNotFoundError as error:
        raise ReportError(f"--report needs {error.name} (pip install 'lorafleet[report]')") from error
    path.write_text(render(found))


def _forecast(arguments: argparse.Namespace) -> Forecast:
    manifests = read_manifests(arguments.filename)
    pool, adapters, tenants = choose_pool(manifests, arguments.pool)
    assert pool.spec is not None  # read_manifests has validated it
    demand = find_demand(adapters, tenants, manifests.namespaces)
    config = arguments.model_config
    terms = Terms(
        base=hardware.read_shape(config) if config else hardware.find_shape(pool.spec),
        gpu=arguments.gpu,
        capacity=arguments.capacity_rps,
        penalty_percent=arguments.penalty,
        ranks=Ranks(arguments.rank, _read_ranks(arguments.ranks) if arguments.ranks else {}),
        known=manifests.known,
    )
    objects = (pool, adapters, tenants)
    return forecast(objects, manifests.namespaces, terms, demand, _arrivals(arguments, demand))


def _arrivals(arguments: argparse.Namespace, demand: Demand) -> Arrivals:
    random = np.random.default_rng(arguments.seed)
    if arguments.trace:
        lengths = trace.read_trace(arguments.trace)
        lengths = trace.rescale(lengths, float(arguments.rps)) if arguments.rps else lengths
    else:
        lengths = plain(even_times(float(arguments.rps or DEFAULT_RPS), float(arguments.hours) * 3600.0))
    return overlay(lengths, demand.groups, float(arguments.zipf), random)


def _print(found: Forecast) -> None:
    wire = found.wire()
    rows: list[tuple[str, object]] = [
        ("GPUs needed", found.gpus),
        ("GPUs, mean", f"{found.gpus_mean:.1f}"),
        ("GPUs with a replica for each tenant", found.gpus_dedicated),
        ("requests a second of one replica", f"{found.capacity:g} ({found.capacity_source})"),
        ("requests", found.requests),
        ("waited for their adapter", share(found.cold, found.requests)),
        ("could not be answered", share(found.unserved, found.requests)),
        ("adapter moves an hour", f"{found.moves_per_hour:.1f}"),
        ("wait before the first step, p50 / p99", f"{found.wait[0]:.3f} s / {found.wait[1]:.3f} s"),
    ]
    print_table(f"Pool {found.pool}", ["", "#"], rows)
    for title, key, columns in (
        ("Adapters that are cold", "cold", ("adapter", "tier", "#requests", "#cold")),
        ("Adapters that are not Ready", "refused", ("adapter", "reason")),
        ("Tenants on the way to replicas of their own", "promotions", ("#at_s", "tenant", "stage", "set", "message")),
    ):
        entries = wire[key]
        if entries:
            more = f" ({SHOWN} of {len(entries)})" if len(entries) > SHOWN else ""
            shown = [[entry.get(column.strip("#")) for column in columns] for entry in entries[:SHOWN]]
            print_table(f"\n{title}{more}", columns, shown)
    if found.rank_classes:
        print(f"rank classes: {found.rank_classes}")
    for each in found.assumptions:
        print(f"assumed: {each}")


def _read_ranks(path: Path) -> dict[str, int]:
    ranks = {}
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if len(row) != 2 or "/" not in row[0] or not row[1].strip().isdecimal():
                raise ManifestError(f"--ranks {path}, line {number}: {','.join(row)!r} is not NAMESPACE/NAME,RANK")
            ranks[row[0].strip()] = int(row[1])
    return ranks


def _positive(text: str) -> Fraction:
    value = _not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} must be more than 0")
    return value


def _not_negative(text: str) -> Fraction:
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(-1)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return value


def _penalty(text: str) -> int:
    value = _not_negative(text) * 100
    if value >= 100 or value.denominator != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share below 1 in whole percents, as 0.2")
    return int(value)
