"""Holds the Lease from a thread of its own. Started by main.py once this process leads.

Renewals must not wait for plans and answers, however many there are: the thread has an event loop and a connection of
its own. It decides nothing; `check` of the Lease stays the fence of every write.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from lorafleet_kube.access import Access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_operator.shell.lease import Lease


class LeaseKeeper:
    """Renews a Lease that is held; `on_lost` is called, in the keeper's thread, when it can't be kept."""

    def __init__(self, access: Access, lease: Lease, on_lost: Callable[[], None]) -> None:
        self._access = access
        self._lease = lease
        self._on_lost = on_lost
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._holding: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    async def stop(self, api: KubeApi) -> None:
        """Renew no more; the Lease speaks through `api` from then on."""
        await asyncio.to_thread(self._started.wait)
        if self._loop is not None and self._holding is not None:
            self._loop.call_soon_threadsafe(self._holding.cancel)
        await asyncio.to_thread(self._thread.join)
        self._lease.speak_through(api)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._hold())

    async def _hold(self) -> None:
        self._loop, self._holding = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        async with connect(self._access) as api:
            self._lease.speak_through(api)
            await self._lease.hold()
            self._on_lost()
