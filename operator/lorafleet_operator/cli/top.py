"""`lorafleet top`: live rates of a pool's replicas, adapters and tenants, from the engines' own state ports.

Called by the `lorafleet` command. It reaches engines as `kubectl port-forward` does, has them prove that they are of
the pool, and proves itself with its read-only state token. So its user needs, in the pool's namespace: get on the
Secret `<pool>-tokens`, list on pods, and get and create on pods/portforward.
"""

import argparse
import asyncio
import base64
import binascii
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from pydantic import ValidationError
from rich.console import Group
from rich.live import Live

from lorafleet_contracts.admin import STATE_PATH, EngineState, PortName
from lorafleet_contracts.names import ENGINE_CA_KEY, LABEL_POOL, EnginePort
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import KubeError
from lorafleet_kube.paths import PODS, SECRETS
from lorafleet_operator.cli.connection import (
    AbsentError,
    add_connection_options,
    namespace_of,
    open_api,
    read_all,
    read_one,
)
from lorafleet_operator.cli.output import add_output_option, build_table, console, fail, print_json
from lorafleet_operator.cli.rates import Look, measure
from lorafleet_operator.cli.reach import reach
from lorafleet_operator.core.manifests.identity import tokens_name
from lorafleet_operator.shell.kinds import LORA_POOLS
from lorafleet_operator.shell.records import read_server_name
from lorafleet_operator.shell.trust import TlsOptions, Trust

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

ANSWER_SECONDS = 5.0
SHOWN = 20
"""Adapters, and tenants, in a table at most; JSON has all."""


@dataclass(frozen=True, slots=True)
class _Access:
    """What opens the state ports of a pool's engines, and what proves these."""

    token: str = field(repr=False)
    trust: Trust


_Port = tuple[str, TlsOptions]


def register(subparsers: "Subparsers") -> None:
    """Add `lorafleet top`."""
    parser = subparsers.add_parser("top", help="live rates of a pool's replicas, adapters and tenants")
    parser.add_argument("pool", nargs="?", metavar="POOL", help="the LoraPool, where the namespace has several")
    parser.add_argument("--interval", type=_seconds, default=2.0, metavar="SECONDS", help="default: 2")
    parser.add_argument("--once", action="store_true", help="one look, then end (so do -o json and pipes)")
    add_connection_options(parser)
    add_output_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        asyncio.run(_show(arguments))
    except (AbsentError, KubeError) as error:
        return fail(error)
    except KeyboardInterrupt:
        pass  # how people end it
    return 0


async def _show(arguments: argparse.Namespace) -> None:
    namespace = namespace_of(arguments) or "default"
    async with open_api(arguments) as api:
        pool = await _choose_pool(api, namespace, arguments.pool)
        access = await _access(api, namespace, pool)
        async with aclosing(_follow(api, (namespace, pool), access, arguments.interval)) as rates:
            if arguments.output == "json":
                print_json({"pool": f"{namespace}/{pool}", **await anext(rates)})
            elif arguments.once or not sys.stdout.isatty():
                console().print(_draw(await anext(rates)))
            else:
                with Live(console=console(), auto_refresh=False, screen=True) as live:
                    async for each in rates:
                        live.update(_draw(each), refresh=True)


async def _choose_pool(api: KubeApi, namespace: str, wanted: str | None) -> str:
    if wanted:
        await read_one(api, ("LoraPool", LORA_POOLS), namespace, wanted)
        return wanted
    names = [str(each["metadata"]["name"]) for each in await read_all(api, LORA_POOLS, namespace)]
    if len(names) == 1:
        return names[0]
    found = (
        f"{len(names)} LoraPools ({', '.join(names)}); name one" if names else "no LoraPool (-n chooses another one)"
    )
    raise AbsentError(f"namespace {namespace} has {found}")


async def _access(api: KubeApi, namespace: str, pool: str) -> _Access:
    secret = await read_one(api, ("Secret", SECRETS), namespace, tokens_name(pool))
    try:
        state, roots = (
            base64.b64decode((secret.get("data") or {}).get(entry, "")).decode()
            for entry in (PortName.STATE.value, ENGINE_CA_KEY)
        )
        lines, trust = state.split(), Trust(roots)
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError):
        lines, trust = [], Trust()
    if not lines:
        raise AbsentError(
            f"Secret {namespace}/{tokens_name(pool)} has no token for the state port; the operator makes it"
        )
    return _Access(lines[0], trust)


async def _follow(
    api: KubeApi, pool: tuple[str, str], access: _Access, interval: float
) -> AsyncGenerator[dict[str, Any], None]:
    """Rates from now on, one set an interval. Pods that come and go are followed."""
    headers = {"authorization": f"Bearer {access.token}"}
    limits = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(headers=headers, timeout=limits))
        ports: dict[tuple[str, str], _Port] = {}
        before: Look | None = None
        while True:
            found = await read_all(api, PODS, pool[0], f"{LABEL_POOL}={pool[1]}")
            pods = {(str(each["metadata"]["name"]), read_server_name(each)): each for each in found}
            for key, pod in pods.items():
                if key not in ports:
                    ports[key] = await stack.enter_async_context(reach(api, pod, EnginePort.STATE, access.trust))
            after = await _look(session, {key[0]: ports[key] for key in sorted(pods)})
            if before is not None:
                yield measure(before, after)
            before = after
            await asyncio.sleep(interval)


async def _look(session: aiohttp.ClientSession, ports: Mapping[str, _Port]) -> Look:
    states = await asyncio.gather(*(_ask(session, port) for port in ports.values()))
    return Look(time.monotonic(), dict(zip(ports, states, strict=True)))


async def _ask(session: aiohttp.ClientSession, port: _Port) -> EngineState | None:
    try:
        async with session.get(port[0] + STATE_PATH, **port[1]) as answer:
            if answer.status != 200:
                return None
            return EngineState.model_validate_json(await answer.read())
    except (aiohttp.ClientError, TimeoutError, OSError, ValidationError):
        return None


def _draw(rates: dict[str, Any]) -> Group:
    replicas = [
        (
            each["replica"],
            each["state"],
            each.get("requests_per_s"),
            each.get("tokens_per_s"),
            each.get("in_flight"),
            each.get("queue"),
            each.get("adapters"),
            _percent(each.get("adapter_bytes")),
            _percent(each.get("kv_tokens")),
        )
        for each in rates["replicas"]
    ]
    columns = ("REPLICA", "STATE", "#REQ/S", "#TOKENS/S", "#RUNNING", "#QUEUE", "#ADAPTERS", "#MEMORY", "#KV")
    adapters = [
        (each["adapter"], each["requests_per_s"], each["tokens_per_s"], each["in_flight"], _tiers(each["replicas"]))
        for each in rates["adapters"][:SHOWN]
    ]
    tenants = [(each["tenant"], each["requests_per_s"], each["tokens_per_s"]) for each in rates["tenants"][:SHOWN]]
    return Group(
        build_table("", columns, replicas),
        "",
        build_table("", ("ADAPTER", "#REQ/S", "#TOKENS/S", "#RUNNING", "REPLICAS"), adapters),
        "",
        build_table("", ("TENANT", "#REQ/S", "#TOKENS/S"), tenants),
    )


def _percent(part: Mapping[str, int] | None) -> str:
    return f"{part['used'] / part['budget']:.0%}" if part and part["budget"] else ""


def _tiers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {tier}" for tier, count in counts.items())


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.1 to 3600")
    return value
