"""`lorafleet ports rotate`: new keys for the engines' three ports, without a request dropped and without a restart.

Called by the `lorafleet` command. Each step waits until the engines themselves say that it has reached them: a new
token is accepted everywhere before anybody uses it, and an old one is taken back when nobody does any more. A command
that was stopped goes on where it was. Its user needs: get and update on the Secret `lorafleet-port-keys`, list on pools
and pods of all namespaces, and get and create on pods/portforward.
"""

import argparse
import asyncio
import base64
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from lorafleet_contracts.admin import METRICS_PATH, PortName
from lorafleet_contracts.durations import DURATION_PATTERN, parse_seconds
from lorafleet_contracts.names import LABEL_POOL, PORT_KEYS_SECRET, EnginePort
from lorafleet_contracts.tokens import TOKEN_USED_METRIC, port_token, token_mark
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import KubeError
from lorafleet_kube.forward import forward
from lorafleet_kube.paths import PODS, SECRETS
from lorafleet_operator.cli.connection import AbsentError, add_connection_options, open_api, read_all, read_one
from lorafleet_operator.cli.output import fail
from lorafleet_operator.cli.record import record
from lorafleet_operator.shell.credentials import KEY_BYTES, NEXT, PREVIOUS, read_port_keys
from lorafleet_operator.shell.kinds import LORA_POOLS

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SYSTEM = "lorafleet-system"
ANSWER_SECONDS = 10.0
PAUSE_SECONDS = 1.0
LEAST_QUIET_SECONDS = 15.0
"""Gateways and operator ask an engine at least this often, so whoever still has an old token shows within this time."""
NAMED = 5
"""Engines that a message names."""

Mark = tuple[str, str]
"""A port, and what one of its tokens is called."""
Uses = Mapping[Mark, float]
"""When each accepted token was last used; the engine's clock."""


class UnfinishedError(Exception):
    """The rotation can't go on; the message says what it waits for and what to do."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Where the keys are, how many seconds nobody may have used an old token, how many a step may wait for engines."""

    namespace: str
    quiet: float
    patience: float


@dataclass(frozen=True, slots=True)
class Engine:
    """What one ready engine says of its tokens; no `uses`: it does not say."""

    name: str
    pool_uid: str
    uses: Uses | None


def register(subparsers: "Subparsers") -> None:
    """Add `lorafleet ports rotate`."""
    ports = subparsers.add_parser("ports", help="credentials of the engines' ports")
    actions = ports.add_subparsers(dest="action", required=True, metavar="ACTION")
    rotate = actions.add_parser("rotate", help="new keys for all three ports, without a dropped request")
    rotate.add_argument(
        "--quiet", type=_quiet, default=120.0, metavar="2m",
        help="an old token goes when nobody has used it for so long; more than Prometheus' interval (default: 2m)",
    )  # fmt: skip
    rotate.add_argument("--timeout", type=_duration, default=900.0, metavar="15m", help="of each step (default: 15m)")
    add_connection_options(rotate)
    rotate.set_defaults(run=_run)


async def rotate_ports(api: KubeApi, terms: Terms, tell: Callable[[str], None]) -> None:
    """Carry a rotation to its end, also one begun before. Raises UnfinishedError, AbsentError or KubeError."""
    connector = aiohttp.TCPConnector(force_close=True)
    limits = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:
        await _Rotation(api, session, terms, tell).run()


Lagging = Callable[[list[Engine]], list[str]]
"""Names of the engines that a step still waits for."""


class _Rotation:
    def __init__(self, api: KubeApi, session: aiohttp.ClientSession, terms: Terms, tell: Callable[[str], None]) -> None:
        self._api = api
        self._session = session
        self._terms = terms
        self._tell = tell
        self._secret: dict[str, Any] = {}

    async def run(self) -> None:
        """All four steps, or those that are left."""
        self._secret = await read_one(self._api, ("Secret", SECRETS), self._terms.namespace, PORT_KEYS_SECRET)
        if not self._has(NEXT) and not self._has(PREVIOUS):
            fresh = {port.value + NEXT: _encode(secrets.token_hex(KEY_BYTES)) for port in PortName}
            await self._replace(self._data() | fresh)
        if self._has(NEXT):
            self._tell("1/4 there are new keys; waiting until every engine accepts their tokens")
            await self._wait("engines that do not accept the new tokens yet", self._not_accepting)
            data = self._data()
            new = {port.value: data[port.value + NEXT] for port in PortName}
            await self._replace(new | {port.value + PREVIOUS: data[port.value] for port in PortName})
        self._tell(
            f"2/4 the new keys are in use; waiting until nobody has used an old one for {self._terms.quiet:.0f} s"
        )
        await self._wait("engines where an old token was used of late, or that do not say", self._still_used())
        old = {mark for uid in await self._pool_uids() for mark in self._marks(uid, PREVIOUS)}
        await self._replace({port.value: self._data()[port.value] for port in PortName})
        self._tell("3/4 the old keys are gone; waiting until every engine refuses their tokens")
        await self._wait("engines that still accept an old token", lambda engines: _accepting(engines, old))
        await record(self._api, self._secret, "PortKeysRotated", "rotated the keys of the engines' ports")
        self._tell("4/4 done: only tokens of the new keys are accepted")

    def _not_accepting(self, engines: list[Engine]) -> list[str]:
        return [
            each.name
            for each in engines
            if each.uses is None or not set(self._marks(each.pool_uid, NEXT)) <= each.uses.keys()
        ]

    def _still_used(self) -> Lagging:
        """Tells engines on which an old token was used within the quiet time, by this process's own clock."""
        seen: dict[tuple[str, Mark], float] = {}
        moved: dict[str, float] = {}
        begun = time.monotonic()

        def name(engines: list[Engine]) -> list[str]:
            now = time.monotonic()
            for each in engines:
                for mark in self._marks(each.pool_uid, PREVIOUS):
                    used = (each.uses or {}).get(mark, 0.0)
                    if seen.setdefault((each.name, mark), used) != used:
                        seen[each.name, mark], moved[each.name] = used, now
            late = now - self._terms.quiet
            return [each.name for each in engines if each.uses is None or moved.get(each.name, begun) > late]

        return name

    def _marks(self, pool_uid: str, suffix: str) -> list[Mark]:
        keys = read_port_keys(self._secret).by_entry
        return [
            (port.value, token_mark(port_token(keys[port.value + suffix], pool_uid, port)))
            for port in PortName
            if port.value + suffix in keys
        ]

    async def _wait(self, what: str, lagging: Lagging) -> None:
        """Ask all ready engines until none lags."""
        deadline = time.monotonic() + self._terms.patience
        while names := lagging(await self._engines()):
            if time.monotonic() > deadline:
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                raise UnfinishedError(
                    f"{what}, after {self._terms.patience:.0f} s: {', '.join(names[:NAMED])}{more}. Nothing is broken: "
                    f"what is in use is accepted. See that the operator runs, that the pools are Accepted, that the "
                    f"engines answer and that you may reach them (kubectl auth can-i create pods/portforward -A), "
                    f"then run the command again: it goes on from here"
                )
            await asyncio.sleep(PAUSE_SECONDS)

    async def _engines(self) -> list[Engine]:
        pools = {
            (str(each["metadata"]["namespace"]), str(each["metadata"]["name"])): str(each["metadata"]["uid"])
            for each in await read_all(self._api, LORA_POOLS, None)
        }
        pods = [each for each in await read_all(self._api, PODS, None, LABEL_POOL) if _ready(each)]
        asked = []
        for pod in pods:
            meta = pod["metadata"]
            uid = pools.get((meta["namespace"], meta["labels"][LABEL_POOL]))
            if uid is not None:
                asked.append(self._ask((meta["namespace"], meta["name"]), uid))
        return list(await asyncio.gather(*asked))

    async def _pool_uids(self) -> list[str]:
        return [str(each["metadata"]["uid"]) for each in await read_all(self._api, LORA_POOLS, None)]

    async def _ask(self, pod: tuple[str, str], pool_uid: str) -> Engine:
        """What an engine says, asked with the token that is in use."""
        key = read_port_keys(self._secret).by_entry[PortName.STATE.value]
        headers = {"authorization": f"Bearer {port_token(key, pool_uid, PortName.STATE)}"}
        uses = None
        try:
            async with (
                forward(self._api, pod, EnginePort.STATE) as url,
                self._session.get(url + METRICS_PATH, headers=headers) as answer,
            ):
                if answer.status == 200:
                    uses = read_uses(await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        return Engine("/".join(pod), pool_uid, uses)

    def _data(self) -> dict[str, str]:
        return dict(self._secret.get("data") or {})

    def _has(self, suffix: str) -> bool:
        return all(port.value + suffix in self._data() for port in PortName)

    async def _replace(self, data: Mapping[str, str]) -> None:
        path = SECRETS.path(self._terms.namespace, PORT_KEYS_SECRET)
        body = {"apiVersion": "v1", "kind": "Secret", **self._secret, "data": dict(data)}
        self._secret = await self._api.request("PUT", path, body=body)


def read_uses(metrics: str) -> Uses:
    """The series of an engine's tokens out of its metrics."""
    lines = "\n".join(line for line in metrics.splitlines() if line.startswith(TOKEN_USED_METRIC + "{"))
    samples = (sample for family in text_string_to_metric_families(lines) for sample in family.samples)
    return {(each.labels["port"], each.labels["token"]): each.value for each in samples}


def _accepting(engines: Iterable[Engine], marks: Set[Mark]) -> list[str]:
    return [each.name for each in engines if each.uses is None or marks & each.uses.keys()]


def _ready(pod: Mapping[str, Any]) -> bool:
    """Whether requests may be on their way to it."""
    conditions: Iterable[Mapping[str, Any]] = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _run(arguments: argparse.Namespace) -> int:
    try:
        asyncio.run(_connect_and_rotate(arguments))
    except (UnfinishedError, AbsentError, KubeError) as error:
        return fail(error)
    except KeyboardInterrupt:
        return fail("stopped; run the command again: it goes on where it was")
    return 0


async def _connect_and_rotate(arguments: argparse.Namespace) -> None:
    terms = Terms(arguments.namespace or SYSTEM, arguments.quiet, arguments.timeout)
    async with open_api(arguments) as api:
        await rotate_ports(api, terms, lambda line: print(line, flush=True))


def _duration(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; pattern {DURATION_PATTERN}") from error


def _quiet(text: str) -> float:
    seconds = _duration(text)
    if seconds < LEAST_QUIET_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is less than {LEAST_QUIET_SECONDS:.0f}s: nobody asks that often")
    return seconds
