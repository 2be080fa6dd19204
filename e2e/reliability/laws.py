"""`python -m e2e.reliability.laws PATH...`: property tests in many cases, in as many processes as there are cores.

Called by `make test-long`. Each process of pytest is a shard: a seed of its own for hypothesis and a part of the cases.
When all are done, each module whose laws held everywhere gets one record (see records.py) with the sums. Needs no more
than the tests themselves. Ends with status 1 when any law failed, with what its shard printed.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from e2e.cluster.paths import REPOSITORY
from e2e.reliability.records import Record, read_records, write_record

MOST_CASES = 5_000
"""Of one process: what hypothesis remembers of the cases it tried makes the next ones slower."""
NO_TESTS = 5
"""pytest's status when none was selected."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One process of pytest over the same `paths`: `cases` of each law, in the order that `seed` gives."""

    paths: tuple[str, ...]
    number: int
    cases: int
    seed: int

    def run(self, folder: Path) -> int:
        """Run it, with its records and what it prints in `folder`. Returns pytest's status."""
        own = self.folder(folder)
        own.mkdir()
        command = (
            *(sys.executable, "-m", "pytest", "-q", "-o", "timeout=0", "-p", "no:cacheprovider"),
            *("-m", "hypothesis and not gpu", f"--basetemp={own / 'tmp'}", f"--hypothesis-seed={self.seed}"),
            *self.paths,
        )
        asked = {"LORAFLEET_CASES": str(self.cases), "LORAFLEET_RECORDS": str(own / "records"), "OMP_NUM_THREADS": "1"}
        with self.output(folder).open("wb") as output:
            return subprocess.run(
                command, check=False, cwd=REPOSITORY, env=os.environ | asked, stdout=output, stderr=subprocess.STDOUT
            ).returncode

    def folder(self, folder: Path) -> Path:
        return folder / str(self.number)

    def output(self, folder: Path) -> Path:
        return self.folder(folder) / "output"


def cut(paths: Sequence[str], cases: int, processes: int, seed: int) -> list[Shard]:
    """Shards of equal parts, at least one for each process; together they try at least `cases` of each law."""
    count = max(processes, -(-cases // MOST_CASES))
    return [Shard(tuple(paths), number, -(-cases // count), seed + number) for number in range(count)]


def merge(parts: Sequence[Record]) -> Record:
    """One record of what the shards left of a module: tried cases and seconds of processor, summed by law."""
    whole: dict[str, Any] = {"module": parts[0]["module"], "cases": {}, "seconds": {}}
    for part in parts:
        each: dict[str, Any] = part
        for field in ("cases", "seconds"):
            for law, figure in each[field].items():
                whole[field][law] = round(whole[field].get(law, 0) + figure, 1)
    return whole


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m e2e.reliability.laws", description=__doc__)
    parser.add_argument("paths", nargs="+", help="test files or folders, from the repository's root")
    parser.add_argument("--cases", type=int, default=100_000, help="how many cases of each law, all processes together")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32), help="of the first shard")
    given = parser.parse_args()
    shards = cut(given.paths, given.cases, given.processes, given.seed)
    print(
        f"== {len(shards)} times {shards[0].cases} cases in {given.processes} processes, seed {given.seed}", flush=True
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return 0 if _all_held(shards, given.processes, folder) and _record(shards, given.processes, folder) else 1


def _all_held(shards: Sequence[Shard], processes: int, folder: Path) -> bool:
    """Run all, some at a time; what a failed one printed is printed."""
    began, held = time.monotonic(), True
    with ThreadPoolExecutor(processes) as pool:
        for shard, status in zip(shards, pool.map(partial(Shard.run, folder=folder), shards), strict=True):
            print(f"   {time.monotonic() - began:.0f} s: shard {shard.number} ended with {status}", flush=True)
            if status:
                held = False
                print(shard.output(folder).read_text(errors="replace"))
                print(f"shard {shard.number}: LORAFLEET_CASES={shard.cases} pytest --hypothesis-seed={shard.seed}")
    return held


def _record(shards: Sequence[Shard], processes: int, folder: Path) -> bool:
    """Write one record for each module; a module that a shard did not record is an error."""
    left = [read_records(shard.folder(folder) / "records") for shard in shards]
    names = sorted(set().union(*left))
    lacking = [name for name in names if any(name not in records for records in left)]
    if lacking or not names:
        print(f"not every shard recorded {', '.join(lacking) or 'a law'}: are there property tests in these paths?")
        return False
    for name in names:
        record = merge([records[name] for records in left])
        write_record(name, record | {"processes": processes})
        print(json.dumps(record))
    return True


if __name__ == "__main__":
    sys.exit(main())
