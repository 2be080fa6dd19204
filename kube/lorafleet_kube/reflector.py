"""List and watch of one collection into a dictionary of compact records.

Called by operator/shell and gateway/shell, one task a reflector. It never writes nor decides what a change means.
The server must offer streaming lists (`sendInitialEvents`, Kubernetes 1.34 or later).
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from lorafleet_kube.api import KubeApi, Object
from lorafleet_kube.errors import ApiError, UnreachableError

T = TypeVar("T")
Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""

IDLE_SECONDS = 90.0
"""Bookmarks come about once a minute: a longer silence is a dead connection."""
WATCH_SECONDS = (300, 600)
FIRST_DELAY_SECONDS = 0.2
MAX_DELAY_SECONDS = 10.0
FORBIDDEN_SECONDS = 300.0
"""How often something optional is asked for that the server forbids."""
FORBIDDEN = 403
GONE = 410

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collection:
    """What to watch: a collection's path, narrowed by selectors."""

    path: str
    label_selector: str = ""
    field_selector: str = ""

    def params(self) -> dict[str, str]:
        """The selectors as query parameters."""
        chosen = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in chosen.items() if value}


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A record that appeared (`old` None), changed, or went (`new` None)."""

    key: Key
    old: T | None
    new: T | None


class Reflector(Generic[T]):
    """Keeps `records` equal to what the server has, and reports each change of a projected record.

    `project` turns an object into a record, or into None when it is of no interest; a ValueError or LookupError from it
    is logged and means None. `on_change` must return quickly; it is called for the initial records too. `synced` is set
    after the first full list. `contacted_at` is the monotonic time of the last sign of life, None before the first.
    What is `optional` counts as empty while the server forbids it: that is no news every few seconds.
    """

    def __init__(
        self,
        api: KubeApi,
        collection: Collection,
        project: Callable[[Object], T | None],
        on_change: Callable[[Change[T]], None],
        *,
        optional: bool = False,
    ) -> None:
        self._api = api
        self._collection = collection
        self._project = project
        self._on_change = on_change
        self._optional = optional
        self._version: str | None = None
        self.records: dict[Key, T] = {}
        self.synced = asyncio.Event()
        self.contacted_at: float | None = None

    async def run(self) -> NoReturn:
        """Watch for ever, across broken connections, expired versions and restarts of the server. Cancel to stop."""
        delay = FIRST_DELAY_SECONDS
        while True:
            contacted = self.contacted_at
            try:
                await (self._list() if self._version is None else self._follow())
                delay = FIRST_DELAY_SECONDS
            except ApiError as error:
                if error.code == GONE:
                    self._version = None
                if error.code == FORBIDDEN and self._optional:
                    await self._do_without(error)
                    continue
                log.warning("watch of %s refused: %s", self._collection.path, error)
            except UnreachableError as error:
                # A stream that had said something just went quiet or was cut: no news. One that never spoke is.
                level = logging.WARNING if self.contacted_at == contacted else logging.INFO
                log.log(level, "watch of %s broke: %s", self._collection.path, error)
            if self.contacted_at != contacted and self._version is not None:
                delay = FIRST_DELAY_SECONDS
            await asyncio.sleep(delay * (0.5 + random.random()))
            delay = min(delay * 2, MAX_DELAY_SECONDS)

    async def _do_without(self, error: ApiError) -> None:
        log.info("doing without %s, which this account may not watch: %s", self._collection.path, error)
        self._version = None
        self._sweep(set())
        self.synced.set()
        await asyncio.sleep(FORBIDDEN_SECONDS)

    async def _list(self) -> None:
        """One streaming list; goes on as a watch on the same stream after the initial records."""
        seen: set[Key] | None = set()
        initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        async for event in self._api.watch(self._collection.path, self._params() | initial, IDLE_SECONDS):
            self.contacted_at = time.monotonic()
            if event["type"] != "BOOKMARK":
                key = self._take(event)
                if seen is None:
                    self._advance(event)
                else:
                    seen.add(key)
                continue
            if seen is not None and _ends_initial(event):
                self._sweep(seen)
                seen = None
                self.synced.set()
            if seen is None:
                self._advance(event)
        if seen is not None:
            raise UnreachableError(f"the list of {self._collection.path} ended early")

    async def _follow(self) -> None:
        params = self._params() | {"resourceVersion": self._version or ""}
        async for event in self._api.watch(self._collection.path, params, IDLE_SECONDS):
            self.contacted_at = time.monotonic()
            if event["type"] != "BOOKMARK":
                self._take(event)
            self._advance(event)

    def _params(self) -> dict[str, str]:
        return {
            **self._collection.params(),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),
        }

    def _advance(self, event: Object) -> None:
        self._version = event["object"]["metadata"]["resourceVersion"]

    def _take(self, event: Object) -> Key:
        metadata = event["object"]["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        gone = event["type"] == "DELETED"
        self._store(key, None if gone else self._read(key, event["object"]))
        return key

    def _read(self, key: Key, found: Object) -> T | None:
        try:
            return self._project(found)
        except (ValueError, LookupError) as error:
            log.warning("unreadable object %s/%s in %s: %s", *key, self._collection.path, error)
            return None

    def _store(self, key: Key, new: T | None) -> None:
        old = self.records.get(key)
        if new == old:
            return
        if new is None:
            del self.records[key]
        else:
            self.records[key] = new
        self._on_change(Change(key, old, new))

    def _sweep(self, seen: set[Key]) -> None:
        """Drop what vanished while nobody was watching."""
        for key in self.records.keys() - seen:
            self._store(key, None)


def _ends_initial(event: Object) -> bool:
    annotations = event["object"]["metadata"].get("annotations", {})
    return bool(annotations.get("k8s.io/initial-events-end") == "true")
