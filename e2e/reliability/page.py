"""docs/reliability.md as a function of the records; called by __main__ and by the test that the page is up to date."""

from collections.abc import Mapping
from typing import Any

from e2e.reliability.records import Record

HEAD = """# Reliability

Written by `make reliability` from the records in `docs/reliability/`, which `make faults` (faults on the local cluster)
and `make test-long` (long runs) leave. Nothing here is an estimate.
"""
FAULTS = """
## Faults

Each is made while a client asks that knows every adapter's right answer: plain requests and streams, for three adapters
on two replicas. `make faults` fails on any answer by a wrong adapter or version, on a stream of two versions or that
ends early without an error, on a lost object, and on a plain request that failed although a healthy replica had the
adapter. Plain requests are sent once; where a gateway's pod, its pickers or a node goes the client repeats them by
itself, as openai's does (2 to 20 times). Seconds count from the moment of the fault.

| fault | {columns} | right answers | streams cut | measured |
|---|{rules}---|---|---|
"""
CLOCK = """
Clocks are set in the programs of operators and gateways: all pods share the machine's own. That a clock that jumps
neither hurries nor delays anything is held by `tests/operator/shell/test_engine_ports.py`, `test_lease.py` and
`tests/operator/core/test_plan_calm.py`, too.
"""
LAWS = """
## Laws

Property tests, each law tried in so many different cases by hypothesis (a law whose one case is a walk of many steps in
a tenth of them), all held. Seconds are those of all processes together:

| module | laws | cases of each | seconds | measured |
|---|---|---|---|---|
"""
STEPS = {"traffic": "traffic whole", "back": "adapters back after its return", "ready": "all Ready"}
"""The columns: what a fault's record may have a time for."""


def render(records: Mapping[str, Record]) -> str:
    """The whole page."""
    faults = [record for record in records.values() if "fault" in record]
    parts = [HEAD]
    if faults:
        parts.append(FAULTS.format(columns=" | ".join(STEPS.values()), rules="---|" * len(STEPS)))
        parts += [_fault_row(record) for record in sorted(faults, key=lambda each: str(each["fault"]))]
        parts.append(CLOCK)
    for name, title, write in PARTS:
        if name in records:
            parts.append(f"\n## {title}\n\n{write(records[name])}")
    laws = [record for name, record in records.items() if name.startswith("laws-")]
    if laws:
        parts += [LAWS, *map(_laws_row, laws)]
    return "".join(parts)


def _fault_row(record: Any) -> str:
    steps = [f"{record['seconds'][step]:.1f} s" if step in record["seconds"] else "" for step in STEPS]
    cells = [record["fault"], *steps, record["counts"]["right"], record["counts"]["cut"], _measured(record)]
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _laws_row(record: Any) -> str:
    seconds, tried = record["seconds"], record["cases"].values()
    cases = str(min(tried)) if min(tried) == max(tried) else f"{min(tried)} to {max(tried)}"
    cells = [f"`{record['module']}`", len(seconds), cases, f"{sum(seconds.values()):.0f}", _measured(record)]
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _measured(record: Any) -> str:
    processes = f", {record['processes']} processes" if "processes" in record else ""
    beside = f"; {record['conditions']}" if "conditions" in record else ""
    return f"{record['date']}, {record['machine']}{processes}{beside}"


REMEMBERED = (
    " The api remembers inspections and token counts of the last 4,096 adapters and a thousand series of metrics, and"
    " grows until then."
)


def _by_tls(record: Any) -> str:
    """Earlier records say nothing and were made without."""
    return ", by TLS" if record["settings"].get("tls") else ""


def _cycles(record: Any) -> str:
    first, last = record["looks"][0], record["looks"][-1]
    grown = {name: (last["memory"][name] - first["memory"][name]) / (1 << 20) for name in first["memory"]}
    files = {name: last["files"][name] - first["files"][name] for name in first["files"]}
    tiers = {tier: last[f"{tier}_bytes"] - first[f"{tier}_bytes"] for tier in ("disk", "host")}
    return (
        f"{record['settings']['cycles']} times a new adapter was inspected, loaded, asked, unloaded on the CPU engine"
        f"{_by_tls(record)} ({record['seconds']:.0f} s; {_measured(record)}). From the first tenth to the last: "
        f"adapter bytes {last['adapters_used'] - first['adapters_used']:+d}, "
        f"{', '.join(f'{tier} tier {size:+d} bytes' for tier, size in tiers.items())}, file handles "
        f"{', '.join(f'{name} {count:+d}' for name, count in files.items())}, private memory "
        f"{', '.join(f'{name} {size:+.1f} MiB' for name, size in grown.items())}. Each cycle brings an adapter that"
        f" was never there before.{REMEMBERED}\n"
    )


def _traffic(record: Any) -> str:
    first, last = record["looks"][0], record["looks"][-1]
    grown = {name: (last["memory"][name] - first["memory"][name]) / (1 << 20) for name in first["memory"]}
    counts = ", ".join(f"{count} {name}" for name, count in record["counts"].items())
    return (
        f"{record['seconds'] / 60:.0f} minutes on the CPU engine{_by_tls(record)}, {record['settings']['clients']} "
        f"clients, adapters coming and going beside them ({_measured(record)}): {counts}. Private memory "
        f"{', '.join(f'{name} {size:+.1f} MiB' for name, size in grown.items())} from the first look to the last."
        f"{REMEMBERED}\n"
    )


def _fuzz(record: Any) -> str:
    statuses = ", ".join(f"{count} with {status}" for status, count in sorted(record["statuses"].items()))
    return (
        f"{record['requests']} requests made from docs/openapi.json, through Envoy, picker and the CPU engine, in "
        f"{record['seconds'] / 60:.0f} minutes ({_measured(record)}). Every answer had a documented status, type and "
        f"shape: {statuses}. The engine was the same process, at rest, at the end.\n"
    )


PARTS = (
    ("cycles", "Loads and unloads", _cycles),
    ("traffic", "Mixed traffic", _traffic),
    ("api-fuzz", "The tenant API under fuzz", _fuzz),
)
