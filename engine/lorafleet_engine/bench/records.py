"""Figures on disk: one JSON line for each finished case, so that a part that was cut short goes on where it stopped.

Used by command.py and merge.py. Torch-free.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished case: `key` names it within its part, `machine` says where and when it ran."""

    part: str
    key: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    record: dict[str, Any]


class RecordFile:
    """Entries of one file, oldest first; appending writes through at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> Iterator[Entry]:
        """All entries; a line that was cut off in writing is passed over."""
        if not self._path.exists():
            return
        for line in self._path.read_text().splitlines():
            try:
                yield Entry(**json.loads(line))
            except (ValueError, TypeError):
                continue

    def finished(self, part: str, settings: dict[str, Any], device: str) -> set[str]:
        """Keys of the part's cases that ran on such a device under exactly these settings."""
        wanted = json.loads(json.dumps(settings))
        return {
            entry.key
            for entry in self.entries()
            if entry.part == part and entry.settings == wanted and entry.machine.get("device") == device
        }

    def append(self, entry: Entry) -> None:
        """Add one finished case."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        cut = self._path.exists() and not self._path.read_bytes().endswith(b"\n") and self._path.stat().st_size > 0
        with self._path.open("a") as file:
            file.write(("\n" if cut else "") + json.dumps(asdict(entry)) + "\n")
