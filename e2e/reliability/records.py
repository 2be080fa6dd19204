"""Records of faults and long runs: one JSON file each in the folder that LORAFLEET_RECORDS names.

Written by e2e/faults and tests/long, read by page.py. Without the variable nothing is written: a test run leaves the
tree as it was.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from e2e.cluster.paths import REPOSITORY

FOLDER = REPOSITORY / "docs" / "reliability"

Record = dict[str, object]


def write_record(name: str, record: Record) -> None:
    """Write `record` with the date and the kind of machine as `NAME.json`, in place of an older one."""
    chosen = os.environ.get("LORAFLEET_RECORDS")
    if not chosen:
        return
    whole = {"date": datetime.now(UTC).date().isoformat(), "machine": describe_machine(), **record}
    folder = Path(chosen)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")


def read_records(folder: Path = FOLDER) -> dict[str, Record]:
    """All records by their names."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def describe_machine() -> str:
    """Cores and memory: all that a reader needs in order to judge a time."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"
