"""Leader election by a Lease, with a fence. Called by main.py (acquire, hold, release) and by every writer (check).

Rules of client-go: only the local monotonic clock counts; a leader stops believing in itself (`deadline`) before others
may take over (`duration`). Losing the Lease is final: the process must end.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError, KubeError
from lorafleet_operator.errors import NotLeadingError
from lorafleet_operator.shell.kinds import LEASES

log = logging.getLogger(__name__)

Object = dict[str, Any]
OwnersOf = Callable[[], Awaitable[list[Object]]]
"""ownerReferences of what the operator makes in its own namespace, so that it goes with the installation."""
NOT_FOUND, CONFLICT = 404, 409


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds: how long a Lease is good, how long its holder trusts it, how often it is looked at."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


class Lease:
    """One contender for one Lease. `identity` must be unique per process, not only per pod name."""

    def __init__(
        self,
        api: KubeApi,
        place: tuple[str, str],
        identity: str,
        owners: OwnersOf,
        *,
        times: LeaseTimes = LeaseTimes(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._namespace, self._name = place
        self._identity = identity
        self._owners = owners
        self._times = times
        self._clock = clock
        self._until = 0.0
        self._seen: tuple[object, object] = (None, None)
        self._seen_at = clock()
        self._seen_duration = times.duration
        self._lost = False
        self._ours: Object | None = None

    def speak_through(self, api: KubeApi) -> None:
        """Use another connection from now on: one belongs to one event loop."""
        self._api = api

    @property
    def identity(self) -> str:
        """Who leads when this process does."""
        return self._identity

    @property
    def valid(self) -> bool:
        """Whether this process surely leads at this moment."""
        return not self._lost and self._clock() < self._until

    def check(self) -> None:
        """Raise NotLeadingError unless this process surely leads. Call it right before every write."""
        if not self.valid:
            raise NotLeadingError("the Lease is not ours")

    async def look(self) -> None:
        """See who holds it: the wait for a holder that is dead begins now and not with the first try to acquire."""
        try:
            self._is_free(await self._read())
        except KubeError as error:
            log.warning("the Lease could not be read: %s", error)

    async def acquire(self) -> None:
        """Return once this process leads."""
        leading = await self._try()
        while not leading:
            await asyncio.sleep(self._times.retry)
            leading = await self._try()
        log.info("leading as %s", self._identity)

    async def hold(self) -> None:
        """Renew; return when the Lease is lost, after which it can't be had again by this object."""
        while self.valid:
            await asyncio.sleep(min(self._times.retry, max(0.05, self._until - self._clock())))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._until - self._clock())):
                    await self._try()
        self._lost = True
        log.error("the Lease is lost")

    async def release(self) -> None:
        """Let go, so that a standby need not wait; does nothing when the Lease is not ours."""
        if not self.valid:
            return
        self._lost = True
        try:
            found = await self._read()
            if found is not None and found["spec"].get("holderIdentity") == self._identity:
                await self._write(found, "")
        except KubeError as error:
            log.warning("the Lease could not be released: %s", error)

    async def _try(self) -> bool:
        """Take or renew the Lease if it is ours, free or expired.

        What this process wrote last is replaced without another look: on a busy machine one call is made in time where
        two are not. If somebody else has written since, the server refuses that, and the next try looks.
        """
        found, self._ours = self._ours, None
        try:
            if found is None:
                found = await self._read()
                if not self._is_free(found):
                    self._until = 0.0
                    return False
            started = self._clock()
            self._ours = await self._write(found, self._identity)
        except ApiError as error:
            if error.code != CONFLICT:
                log.warning("the Lease could not be renewed: %s", error)
            return False
        except KubeError as error:
            log.warning("the Lease could not be renewed: %s", error)
            return False
        self._until = started + self._times.deadline
        return True

    def _is_free(self, found: Object | None) -> bool:
        """Whether the Lease is ours, released, or was not renewed for its duration as this process has seen it."""
        if found is not None:
            spec = found.get("spec") or {}
            mark = (spec.get("holderIdentity"), spec.get("renewTime"))
            if mark != self._seen:
                self._seen, self._seen_at = mark, self._clock()
                self._seen_duration = float(spec.get("leaseDurationSeconds") or self._times.duration)
        # One that somebody deleted still counts as its last holder's, who may not know yet.
        holder = self._seen[0]
        return holder in (None, "", self._identity) or self._clock() > self._seen_at + self._seen_duration

    async def _read(self) -> Object | None:
        try:
            return await self._api.request(
                "GET", LEASES.path(self._namespace, self._name), timeout_seconds=self._patience()
            )
        except ApiError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    async def _write(self, found: Object | None, holder: str) -> Object:
        """Replace what was read (a race ends in 409) or create what was absent; returns what is there now."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = found or {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace, "ownerReferences": await self._owners()},
            "spec": {},
        }
        spec = dict(lease.get("spec") or {})
        if holder and spec.get("holderIdentity") != holder:
            spec |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        duration = int(self._times.duration) if holder else 1
        spec |= {"holderIdentity": holder, "renewTime": now, "leaseDurationSeconds": duration}
        method, path = (
            ("PUT", LEASES.path(self._namespace, self._name)) if found else ("POST", LEASES.path(self._namespace))
        )
        return await self._api.request(method, path, body={**lease, "spec": spec}, timeout_seconds=self._patience())

    def _patience(self) -> float:
        """A call must end before the deadline does, so that there is time for another."""
        return max(1.0, min(5.0, self._times.deadline / 2))
