"""`lorafleet why adapter|tenant|pool NAME`: the decision about one object, with its numbers. Reads statuses and events.

Called by the `lorafleet` command. What the operator decided stands in the object's status and nowhere else; this only
reads it out, whatever fields the operator's release has.
"""

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import KubeError
from lorafleet_operator.cli.connection import (
    AbsentError,
    Object,
    add_connection_options,
    condition,
    namespace_of,
    open_api,
    read_one,
    title_of,
)
from lorafleet_operator.cli.output import add_output_option, fail, print_json, print_table
from lorafleet_operator.shell.kinds import EVENTS, LORA_ADAPTERS, LORA_POOLS, TENANTS

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

KINDS = {
    "adapter": ("LoraAdapter", LORA_ADAPTERS),
    "tenant": ("Tenant", TENANTS),
    "pool": ("LoraPool", LORA_POOLS),
}
BYTES = frozenset({"bytes", "weights", "activations"})


def register(subparsers: "Subparsers") -> None:
    """Add `lorafleet why`."""
    parser = subparsers.add_parser("why", help="why an adapter, a tenant or a pool is as it is")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("name", metavar="NAME")
    add_connection_options(parser)
    add_output_option(parser)
    parser.set_defaults(run=_run)


async def explain(api: KubeApi, kind: str, namespace: str, name: str) -> dict[str, Any]:
    """Verdict, decision, conditions and events of one object. Raises AbsentError or KubeError."""
    found = await read_one(api, KINDS[kind], namespace, name)
    status = dict(found.get("status") or {})
    conditions = status.pop("conditions", [])
    told: dict[str, Any] = {
        "kind": KINDS[kind][0],
        "name": title_of(found),
        "verdict": _verdict(found),
        "decision": status,
        "conditions": conditions,
        "events": await _events(api, found),
    }
    if kind != "pool":
        told["pool"] = await _pool_of(api, found)
    return told


def _verdict(found: Object) -> str:
    """One line: Ready, or the reason and what to do."""
    ready, generation = condition(found, "Ready"), found["metadata"].get("generation")
    if not ready:
        return "no verdict yet: no operator has looked at it (is one running, and does it watch this namespace?)"
    stale = "" if ready.get("observedGeneration") in (None, generation) else " (of an older spec; the new one is next)"
    if ready.get("status") == "True":
        degraded = condition(found, "Degraded")
        if degraded.get("status") == "True":
            return f"Ready, but Degraded: {_words(degraded)}{stale}"
        return f"Ready{stale}"
    available = condition(found, "Available")
    serving = f"; meanwhile {available['message']}" if available.get("status") == "True" else ""
    return f"not Ready: {_words(ready)}{serving}{stale}"


def _words(found: Object) -> str:
    return ": ".join(each for each in (found.get("reason"), found.get("message")) if each)


async def _pool_of(api: KubeApi, found: Object) -> dict[str, str]:
    ref = (found.get("spec") or {}).get("poolRef") or {}
    namespace = ref.get("namespace") or found["metadata"]["namespace"]
    try:
        pool = await read_one(api, KINDS["pool"], namespace, ref.get("name", ""))
    except AbsentError:
        return {"name": f"{namespace}/{ref.get('name', '')}", "verdict": "there is no such pool"}
    except KubeError as error:
        return {"name": f"{namespace}/{ref.get('name', '')}", "verdict": f"can't be read: {error}"}
    return {"name": title_of(pool), "verdict": _verdict(pool)}


async def _events(api: KubeApi, found: Object) -> list[dict[str, Any]]:
    """Events about this very object, oldest first."""
    meta = found["metadata"]
    selector = f"involvedObject.uid={meta['uid']}"
    answer = await api.get(EVENTS.path(meta["namespace"]), {"fieldSelector": selector})
    events = [
        {
            "at": each.get("lastTimestamp") or each.get("eventTime") or "",
            "type": each.get("type", ""),
            "reason": each.get("reason", ""),
            "message": each.get("message", ""),
        }
        for each in answer.get("items") or []
    ]
    return sorted(events, key=lambda each: str(each["at"]))


def _run(arguments: argparse.Namespace) -> int:
    try:
        told = asyncio.run(_connect_and_explain(arguments))
    except (AbsentError, KubeError) as error:
        return fail(error)
    if arguments.output == "json":
        print_json(told)
    else:
        _print(told)
    return 0


async def _connect_and_explain(arguments: argparse.Namespace) -> dict[str, Any]:
    async with open_api(arguments) as api:
        return await explain(api, arguments.kind, namespace_of(arguments) or "default", arguments.name)


def _print(told: dict[str, Any]) -> None:
    print(f"{told['kind']} {told['name']}: {told['verdict']}")
    if "pool" in told:
        print(f"LoraPool {told['pool']['name']}: {told['pool']['verdict']}")
    decision = list(_flatten("", told["decision"]))
    if decision:
        print()
        print_table("", ("DECISION", ""), decision)
    if told["conditions"]:
        print()
        rows = [
            (each["type"], each["status"], each["reason"], each.get("message", ""), each.get("lastTransitionTime", ""))
            for each in told["conditions"]
        ]
        print_table("", ("CONDITION", "", "REASON", "MESSAGE", "SINCE"), rows)
    if told["events"]:
        print()
        rows = [tuple(each.values()) for each in told["events"]]
        print_table("", ("EVENT", "TYPE", "REASON", "MESSAGE"), rows)


def _flatten(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Rows of a status: a path and a value each; sizes with their unit."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flatten(f"{path}.{key}" if path else key, each)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for number, each in enumerate(value):
            yield from _flatten(f"{path}[{number}]", each)
    elif isinstance(value, list):
        yield path, ", ".join(str(each) for each in value)
    elif isinstance(value, int) and (path.rpartition(".")[2] in BYTES or path == "budget.adapters"):
        yield path, f"{value} ({value / 1e6:,.1f} MB)"
    else:
        yield path, str(value)
