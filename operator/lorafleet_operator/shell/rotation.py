"""New keys for the engines' ports: what the leader does on its period, and `lorafleet ports rotate` when it is told to.

A new token is accepted everywhere before anybody uses it, and an old one is taken back when nobody does any more; the
engines themselves say so. All that a rotation has come to is in the Secret: who is stopped, or outrun by another, looks
again and goes on from there. Never logs a key or token.
"""

import base64
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from lorafleet_contracts.admin import METRICS_PATH, PortName
from lorafleet_contracts.names import PORT_KEYS_SECRET
from lorafleet_contracts.tokens import TOKEN_USED_METRIC
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.paths import SECRETS
from lorafleet_operator.core.conditions import parse_timestamp, timestamp
from lorafleet_operator.core.port_keys import (
    EngineUses,
    PortKeys,
    Stage,
    Uses,
    Watched,
    not_accepting,
    still_used,
    watch,
)
from lorafleet_operator.shell.credentials import KEY_BYTES, read_port_keys
from lorafleet_operator.shell.engines import read_bounded

STARTED, ROTATED = "lorafleet.io/rotation-started", "lorafleet.io/rotated"
"""Annotations of the Secret: since when a rotation goes on, and when the last one ended."""
WAITS_FOR = {
    Stage.OFFERED: "engines that do not accept the new tokens yet",
    Stage.REPLACED: "engines where an old token is still used, or that do not say",
}
"""What a rotation at a stage waits for, before the names of those engines."""
OK, CONFLICT = 200, 409
NAMED = 5
"""Engines that a message names."""

Object = dict[str, Any]
Ask = Callable[[PortKeys], Awaitable[list[EngineUses]]]
"""What all ready engines say of their tokens, asked with the token in use."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a rotation came to: the engines that it waits for, or the stage that it has just brought about.

    Neither: somebody else has changed the Secret meanwhile.
    """

    waiting: tuple[str, ...] = ()
    reached: Stage | None = None


class Rotation:
    """One rotation after the other, a look at a time. `check` is called right before every write and may raise."""

    def __init__(
        self,
        api: KubeApi,
        ask: Ask,
        quiet: float,
        *,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._ask = ask
        self._quiet = quiet
        self._check = check
        self._clock = clock
        self._watched: Watched | None = None

    async def look(self, secret: Object) -> Look:
        """Begin a rotation, or carry one on if engines are ready for it. Raises KubeError, and what `check` does."""
        keys = read_port_keys(secret)
        if keys.stage is not Stage.REPLACED:
            self._watched = None
        if keys.stage is Stage.RESTING:
            fresh = {port: secrets.token_hex(KEY_BYTES).encode() for port in PortName}
            return await self._write(secret, keys.offer(fresh), {STARTED: timestamp(time.time())})
        engines, now = await self._ask(keys), self._clock()
        if keys.stage is Stage.OFFERED:
            waiting = not_accepting(keys, engines)
            return Look(waiting) if waiting else await self._write(secret, keys.replace(), {})
        self._watched = watch(self._watched, keys, engines, now)
        waiting = still_used(self._watched, engines, now - self._quiet)
        if waiting:
            return Look(waiting)
        return await self._write(secret, keys.settle(), {STARTED: None, ROTATED: timestamp(time.time())})

    async def _write(self, secret: Object, keys: PortKeys, notes: Mapping[str, str | None]) -> Look:
        meta = secret["metadata"]
        annotations = {**(meta.get("annotations") or {}), **notes}
        kept = {key: value for key, value in annotations.items() if value is not None}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            **secret,
            "metadata": {**meta, "annotations": kept},
            "data": {entry: base64.b64encode(key).decode() for entry, key in keys.by_entry.items()},
        }
        self._check()
        try:
            await self._api.request("PUT", SECRETS.path(meta["namespace"], PORT_KEYS_SECRET), body=body)
        except ApiError as error:
            if error.code != CONFLICT:
                raise
            return Look()
        return Look(reached=keys.stage)


async def ask_uses(session: aiohttp.ClientSession, url: str, token: str, **options: Any) -> Uses | None:
    """What an engine at `url` says of its tokens; None where its answer is not what it should be.

    `options` are those of a request. Raises aiohttp.ClientError, OSError or TimeoutError where it does not answer.
    """
    headers = {"authorization": f"Bearer {token}"}
    async with session.get(url + METRICS_PATH, headers=headers, allow_redirects=False, **options) as answer:
        if answer.status != OK:
            return None
        try:
            return read_uses((await read_bounded(answer)).decode())
        except ValueError:
            return None


def rotated_at(secret: Object) -> float:
    """When the keys in use were made: the end of the last rotation, or the Secret's beginning. Unix seconds."""
    meta = secret["metadata"]
    return _moment((meta.get("annotations") or {}).get(ROTATED)) or _moment(meta.get("creationTimestamp"))


def started_at(secret: Object) -> float:
    """Since when a rotation goes on; 0 where none does, or nobody has noted it. Unix seconds."""
    return _moment((secret["metadata"].get("annotations") or {}).get(STARTED))


def name_some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def read_uses(metrics: str) -> Uses | None:
    """The series of an engine's tokens out of its metrics; None where they are not what they should be."""
    lines = "\n".join(line for line in metrics.splitlines() if line.startswith(TOKEN_USED_METRIC + "{"))
    try:
        samples = [sample for family in text_string_to_metric_families(lines) for sample in family.samples]
        return {(each.labels["port"], each.labels["token"]): each.value for each in samples}
    except (ValueError, KeyError):
        return None


def _moment(text: str | None) -> float:
    try:
        return parse_timestamp(text or "")
    except ValueError:
        return 0.0
