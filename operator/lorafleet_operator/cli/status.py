"""`lorafleet status`: pools at a glance, and whatever is not Ready with the reason. Reads statuses only.

Called by the `lorafleet` command. Objects are shown as they are, so that another release's operator is no problem.
"""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import KubeError
from lorafleet_operator.cli.connection import (
    Object,
    add_connection_options,
    condition,
    namespace_of,
    open_api,
    read_all,
    title_of,
)
from lorafleet_operator.cli.output import add_output_option, fail, print_json, print_table
from lorafleet_operator.shell.kinds import LORA_ADAPTERS, LORA_POOLS, TENANTS

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def register(subparsers: "Subparsers") -> None:
    """Add `lorafleet status`."""
    parser = subparsers.add_parser("status", help="pools at a glance, and what is not Ready")
    add_connection_options(parser, all_namespaces=True)
    add_output_option(parser)
    parser.set_defaults(run=_run)


async def look(api: KubeApi, namespace: str | None) -> dict[str, Any]:
    """Pools and troubles of one namespace, or of all. Raises KubeError."""
    pools = await read_all(api, LORA_POOLS, namespace)
    adapters = await read_all(api, LORA_ADAPTERS, namespace)
    tenants = await read_all(api, TENANTS, namespace)
    objects = [
        *(("LoraPool", each) for each in pools),
        *(("LoraAdapter", each) for each in adapters),
        *(("Tenant", each) for each in tenants),
    ]
    return {
        "pools": [_summary(each, adapters, tenants) for each in pools],
        "adapters": _count(adapters),
        "tenants": _count(tenants),
        "not_ready": [trouble for kind, each in objects if (trouble := _trouble(kind, each))],
    }


def _summary(pool: Object, adapters: list[Object], tenants: list[Object]) -> dict[str, Any]:
    status, spec = pool.get("status") or {}, pool.get("spec") or {}
    mine = [each for each in adapters if _points_to(each, pool)]
    return {
        "pool": title_of(pool),
        "base": (spec.get("baseModel") or {}).get("name", ""),
        "ready": condition(pool, "Ready").get("status", "Unknown"),
        "degraded": condition(pool, "Degraded").get("status", "Unknown"),
        "replicas": status.get("replicas", 0),
        "ready_replicas": status.get("readyReplicas", 0),
        "sets": {
            each["name"]: f"{each.get('ready', 0)}/{each.get('replicas', 0)}" for each in status.get("sets") or []
        },
        "capacity": status.get("capacity"),
        "budget": status.get("budget"),
        "adapters": _count(mine),
        "tenants": _count([each for each in tenants if _points_to(each, pool)]),
    }


def _points_to(found: Object, pool: Object) -> bool:
    ref = (found.get("spec") or {}).get("poolRef") or {}
    home = ref.get("namespace") or found["metadata"].get("namespace")
    return (home, ref.get("name")) == (pool["metadata"].get("namespace"), pool["metadata"]["name"])


def _count(objects: list[Object]) -> dict[str, int]:
    return {"all": len(objects), "ready": sum(condition(each, "Ready").get("status") == "True" for each in objects)}


def _trouble(kind: str, found: Object) -> dict[str, str] | None:
    ready, degraded = condition(found, "Ready"), condition(found, "Degraded")
    worst = degraded if ready.get("status") == "True" and degraded.get("status") == "True" else ready
    if worst is ready and ready.get("status") == "True":
        return None
    return {
        "kind": kind,
        "name": title_of(found),
        "reason": worst.get("reason", "NoVerdict"),
        "message": worst.get("message") or ("" if worst else "no operator has looked at it yet"),
        "since": worst.get("lastTransitionTime", ""),
    }


def _run(arguments: argparse.Namespace) -> int:
    try:
        found = asyncio.run(_connect_and_look(arguments))
    except KubeError as error:
        return fail(error)
    if arguments.output == "json":
        print_json(found)
    else:
        _print(found)
    return 0


async def _connect_and_look(arguments: argparse.Namespace) -> dict[str, Any]:
    async with open_api(arguments) as api:
        return await look(api, namespace_of(arguments))


def _print(found: dict[str, Any]) -> None:
    rows = [
        (
            each["pool"],
            each["base"],
            each["ready"],
            f"{each['ready_replicas']}/{each['replicas']}",
            ", ".join(f"{name} {count}" for name, count in each["sets"].items()),
            _ratio(each["adapters"]),
            _ratio(each["tenants"]),
        )
        for each in found["pools"]
    ]
    if rows:
        print_table("", ("POOL", "BASE", "READY", "#REPLICAS", "SETS", "#ADAPTERS", "#TENANTS"), rows)
    else:
        print(
            f"no LoraPool here; {_ratio(found['adapters'])} adapters and {_ratio(found['tenants'])} tenants are Ready"
        )
    if found["not_ready"]:
        print()
        troubles = [(each["kind"], each["name"], each["reason"], each["message"]) for each in found["not_ready"]]
        print_table("", ("NOT READY", "NAME", "REASON", "MESSAGE"), troubles)


def _ratio(counts: dict[str, int]) -> str:
    return f"{counts['ready']}/{counts['all']}"
