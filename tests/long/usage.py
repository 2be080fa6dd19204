"""What a running engine takes of its machine: memory and files of its processes, bytes of its caches."""

from dataclasses import dataclass
from pathlib import Path

from lorafleet_contracts.admin import EngineState
from tests.conformance.client import Client

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Usage:
    """One look. Processes are named api, loop and loader; all sizes are bytes."""

    memory: dict[str, int]
    files: dict[str, int]
    disk_bytes: int
    host_bytes: int
    adapters_used: int
    kv_tokens_used: int


def look(client: Client) -> Usage:
    """Measure the engine behind `client`, which must run here."""
    engine = client.engine
    assert engine.process is not None
    assert engine.folder is not None
    processes = {"api": engine.process.pid, **engine.children()}
    state = EngineState.model_validate(client.state())
    assert state.memory is not None
    return Usage(
        memory={name: resident_bytes(pid) for name, pid in processes.items()},
        files={name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in processes.items()},
        disk_bytes=folder_bytes(engine.folder / "disk"),
        host_bytes=folder_bytes(engine.folder / "host"),
        adapters_used=state.memory.adapters_used,
        kv_tokens_used=state.memory.kv_tokens_used,
    )


def resident_bytes(pid: int) -> int:
    """Private memory of a process: what is mapped from files or shared with others does not count."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return (int(rows["Private_Dirty"].split()[0]) + int(rows["Private_Clean"].split()[0])) * KIB


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
