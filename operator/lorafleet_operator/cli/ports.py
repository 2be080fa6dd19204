"""`lorafleet ports rotate`: new keys for the engines' three ports, without a request dropped and without a restart.

Called by the `lorafleet` command. Each step waits until the engines themselves say that it has reached them (see
shell/rotation.py, which the operator's own period uses, too). A command that was stopped goes on where it was. Its user
needs: get and update on the Secret `lorafleet-port-keys`, get on the ConfigMap `lorafleet-engine-ca` beside it, list on
pools and pods of all namespaces, and get and create on pods/portforward.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.durations import DURATION_PATTERN, parse_seconds
from lorafleet_contracts.names import ENGINE_CA, ENGINE_CA_KEY, LABEL_POOL, PORT_KEYS_SECRET, EnginePort
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import KubeError
from lorafleet_kube.paths import PODS, SECRETS
from lorafleet_operator.cli.connection import AbsentError, add_connection_options, open_api, read_all, read_one
from lorafleet_operator.cli.output import fail
from lorafleet_operator.cli.reach import reach
from lorafleet_operator.cli.record import record
from lorafleet_operator.core.port_keys import PREVIOUS, EngineUses, Mark, PortKeys, Stage, accepting
from lorafleet_operator.shell.credentials import read_port_keys
from lorafleet_operator.shell.kinds import CONFIG_MAPS, LORA_POOLS
from lorafleet_operator.shell.records import read_server_name
from lorafleet_operator.shell.rotation import WAITS_FOR, Rotation, ask_uses, name_some
from lorafleet_operator.shell.trust import Trust

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SYSTEM = "lorafleet-system"
ANSWER_SECONDS = 10.0
PAUSE_SECONDS = 1.0
LEAST_QUIET_SECONDS = 15.0
"""Gateways and operator ask an engine at least this often, so whoever still has an old token shows within this time."""


class UnfinishedError(Exception):
    """The rotation can't go on; the message says what it waits for and what to do."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Where the keys are, how many seconds nobody may have used an old token, how many a step may wait for engines."""

    namespace: str
    quiet: float
    patience: float


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
        await _Command(api, session, terms, tell).run()


class _Command:
    """A rotation as somebody waits for it, beside an operator that may carry it on as well."""

    def __init__(self, api: KubeApi, session: aiohttp.ClientSession, terms: Terms, tell: Callable[[str], None]) -> None:
        self._api = api
        self._session = session
        self._terms = terms
        self._tell = tell
        self._trust = Trust()
        self._rotation = Rotation(api, self._engines, terms.quiet)

    async def run(self) -> None:
        """All steps, or those that are left."""
        old: frozenset[Mark] = frozenset()
        stage: Stage | None = None
        while True:
            secret = await read_one(self._api, ("Secret", SECRETS), self._terms.namespace, PORT_KEYS_SECRET)
            keys = read_port_keys(secret)
            if keys.stage is Stage.RESTING and stage not in (None, Stage.RESTING):
                break
            if keys.stage is not stage:
                stage, deadline = keys.stage, time.monotonic() + self._terms.patience
                self._tell_stage(stage)
            if stage is Stage.REPLACED:
                old = frozenset[Mark]().union(*(keys.marks(uid, PREVIOUS) for uid in await self._pool_uids()))
            look = await self._rotation.look(secret)
            if look.waiting:
                await self._pause(WAITS_FOR[stage], look.waiting, deadline)
        self._tell("3/4 the old keys are gone; waiting until every engine refuses their tokens")
        deadline = time.monotonic() + self._terms.patience
        while names := accepting(old, await self._engines(keys)):
            await self._pause("engines that still accept an old token", names, deadline)
        await record(self._api, secret, "PortKeysRotated", "rotated the keys of the engines' ports")
        self._tell("4/4 done: only tokens of the new keys are accepted")

    def _tell_stage(self, stage: Stage) -> None:
        if stage is Stage.OFFERED:
            self._tell("1/4 there are new keys; waiting until every engine accepts their tokens")
        elif stage is Stage.REPLACED:
            quiet = f"{self._terms.quiet:.0f} s"
            self._tell(f"2/4 the new keys are in use; waiting until nobody has used an old one for {quiet}")

    async def _pause(self, what: str, names: Sequence[str], deadline: float) -> None:
        """Wait a little for engines. Raises UnfinishedError after the deadline."""
        if time.monotonic() > deadline:
            raise UnfinishedError(
                f"{what}, after {self._terms.patience:.0f} s: {name_some(names)}. Nothing is broken: "
                f"what is in use is accepted. See that the operator runs, that the pools are Accepted, that the "
                f"engines answer and that you may reach them (kubectl auth can-i create pods/portforward -A), "
                f"then run the command again: it goes on from here"
            )
        await asyncio.sleep(PAUSE_SECONDS)

    async def _engines(self, keys: PortKeys) -> list[EngineUses]:
        pools = {
            (str(each["metadata"]["namespace"]), str(each["metadata"]["name"])): str(each["metadata"]["uid"])
            for each in await read_all(self._api, LORA_POOLS, None)
        }
        pods = [each for each in await read_all(self._api, PODS, None, LABEL_POOL) if _ready(each)]
        if any(map(read_server_name, pods)):
            where = (("ConfigMap", CONFIG_MAPS), self._terms.namespace, ENGINE_CA)
            self._trust.take((await read_one(self._api, *where)).get("data", {}).get(ENGINE_CA_KEY, ""))
        asked = []
        for pod in pods:
            meta = pod["metadata"]
            uid = pools.get((meta["namespace"], meta["labels"][LABEL_POOL]))
            if uid is not None:
                asked.append(self._ask(pod, uid, keys))
        return list(await asyncio.gather(*asked))

    async def _pool_uids(self) -> list[str]:
        return [str(each["metadata"]["uid"]) for each in await read_all(self._api, LORA_POOLS, None)]

    async def _ask(self, pod: Mapping[str, Any], pool_uid: str, keys: PortKeys) -> EngineUses:
        """What an engine says, asked with the token that is in use."""
        token = keys.tokens_for(pool_uid).by_port[PortName.STATE.value][0]
        uses = None
        try:
            async with reach(self._api, pod, EnginePort.STATE, self._trust) as (url, options):
                uses = await ask_uses(self._session, url, token, **options)
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        return EngineUses(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", pool_uid, uses)


def _ready(pod: Mapping[str, Any]) -> bool:
    """Whether requests may be on their way to it."""
    conditions: Iterable[Mapping[str, Any]] = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


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
