"""`lorafleet bench`: runs one part of the engine's benchmark, merges what parts have recorded into JSON and a report,
or measures an endpoint (bench/endpoint/).

Registered with the `lorafleet` command, and run as `python -m lorafleet_engine.bench` where nothing is installed but
torch, triton, safetensors and numpy. Torch is imported when a part runs, not before.
"""

import argparse
import datetime
import importlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorafleet_engine.bench.commit import commit
from lorafleet_engine.bench.endpoint.command import add_serve
from lorafleet_engine.bench.merge import NothingToMergeError, merge
from lorafleet_engine.bench.options import FULL, TINY, Options
from lorafleet_engine.bench.records import Entry, RecordFile

if TYPE_CHECKING:
    from lorafleet_engine.bench.bench import Bench, Case

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

PARTS = (
    "decode",
    "prefill",
    "merged",
    "serve",
    "stall",
    "residents",
    "cold",
    "http",
    "long",
    "disk",
    "matrix",
    "fp8",
    "sweep",
    "open",
    "classes",
    "source",
)
"""In an order in which few engines are built."""


def register(subparsers: "Subparsers") -> None:
    """Add `lorafleet bench engine`, `lorafleet bench merge` and `lorafleet bench serve`."""
    add_commands(
        subparsers.add_parser("bench", help="measure endpoints, or the engine on the fixed multi-LoRA workload")
    )


def add_commands(parser: argparse.ArgumentParser) -> None:
    """The commands under `parser`."""
    commands = parser.add_subparsers(dest="bench", required=True, metavar="COMMAND")
    engine = commands.add_parser("engine", help="run parts; finished cases are skipped")
    engine.add_argument("--part", required=True, action="append", choices=[*PARTS, "all"], help="may be repeated")
    engine.add_argument("--records", type=Path, required=True, help="a file of JSON lines, appended to")
    engine.add_argument("--sources", type=Path, default=Path("/dev/shm/lorafleet-bench"), help="a tmpfs folder")
    engine.add_argument("--disk", type=Path, default=Path("/var/tmp/lorafleet-bench"), help="a folder on a real disk")
    engine.add_argument("--tiny", action="store_true", help="a small model: shows that it runs, measures nothing")
    engine.add_argument("--device", default="", help="cuda or cpu; cuda where there is one")
    engine.add_argument("--repeats", type=int, default=3, help="the median of so many counts")
    engine.add_argument("--budget", type=float, default=480.0, metavar="SECONDS", help="start no case after so long")
    engine.add_argument("--utilization", type=int, default=95, help="percent of the device's memory")
    engine.add_argument("--commit", default="", help="where git cannot tell")
    engine.set_defaults(run=_engine)
    merging = commands.add_parser("merge", help="merge records into one JSON file and one HTML page")
    merging.add_argument("records", type=Path, nargs="+")
    merging.add_argument("--out", type=Path, default=Path("docs/benchmarks/engine-h200.json"))
    merging.add_argument("--rivals", type=Path, default=Path("docs/benchmarks/rivals.json"))
    merging.add_argument("--bars", type=Path, default=Path("docs/benchmarks/bars.json"))
    merging.set_defaults(run=_merge)
    add_serve(commands)


def _merge(parsed: argparse.Namespace) -> int:
    try:
        print(json.dumps(merge(parsed.records, parsed.rivals, parsed.bars, parsed.out)))
    except (NothingToMergeError, OSError) as error:
        print(f"lorafleet: {error}", file=sys.stderr)
        return 1
    return 0


def _engine(parsed: argparse.Namespace) -> int:
    try:
        import torch

        from lorafleet_engine.bench.bench import Bench
    except ModuleNotFoundError as error:
        print(f"lorafleet: `bench engine` needs {error.name} (pip install 'lorafleet[engine]')", file=sys.stderr)
        return 1
    options = Options(
        records=parsed.records,
        sources=parsed.sources,
        disk=parsed.disk,
        dims=TINY if parsed.tiny else FULL,
        device=parsed.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        repeats=parsed.repeats,
        budget_s=parsed.budget,
        utilization_percent=parsed.utilization,
        commit=parsed.commit or commit(),
    )
    started = time.monotonic()
    bench = Bench(options)
    machine = {
        "device": torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "cpu",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "bandwidth_bytes_s": round(bench.floor.bandwidth),
    }
    parts = [part for part in PARTS if "all" in parsed.part] or list(dict.fromkeys(parsed.part))
    summary: dict[str, Any] = {"parts": parts, "done": [], "skipped": [], "left": [], "errors": [], **machine}
    for part in parts:
        _run_part(bench, part, machine, started, summary)
    summary["seconds"] = round(time.monotonic() - started, 1)
    print(json.dumps(summary), flush=True)
    return 0 if not summary["left"] and not summary["errors"] else 1


def _run_part(
    bench: "Bench", part: str, machine: dict[str, Any], started: float, summary: dict[str, list[str]]
) -> None:
    """Run the cases that are not finished yet, as far as the budget goes. A failed case does not end the part."""
    options = bench.options
    finished = RecordFile(options.records).finished(part, options.settings(), machine["device"])
    for case in importlib.import_module(f"lorafleet_engine.bench.parts.{part}").cases(bench):
        if case.key in finished:
            summary["skipped"].append(f"{part} {case.key}")
        elif time.monotonic() - started >= options.budget_s:
            summary["left"].append(f"{part} {case.key}")
        else:
            _run_case(bench, part, case, machine, summary)
            print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _run_case(bench: "Bench", part: str, case: "Case", machine: dict[str, Any], summary: dict[str, list[str]]) -> None:
    """Run one case into the records, or into the summary's errors; the engine of a failed one is dropped."""
    options = bench.options
    try:
        record = case.run()
    except Exception as error:  # noqa: BLE001  (the other cases are still worth their figures)
        summary["errors"].append(f"{part} {case.key}: {type(error).__name__}: {error}")
        print(summary["errors"][-1], file=sys.stderr, flush=True)
        record = None
    if record is None:
        bench.drop()  # only here, where no traceback holds on to the engine any more
        return
    RecordFile(options.records).append(Entry(part, case.key, options.settings(), machine, record))
    summary["done"].append(f"{part} {case.key}")
    print(f"{part}  {case.key}  {json.dumps(record)}", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The same commands without the `lorafleet` root; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lorafleet_engine.bench", description=__doc__)
    add_commands(parser)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))
