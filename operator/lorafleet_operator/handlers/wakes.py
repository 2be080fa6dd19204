"""Turns whatever happens into wake-ups of tasks. The watches call it from start-up on; a standby just drops them."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from lorafleet_operator.handlers.parts import Parts
from lorafleet_operator.handlers.tasks import OrphanTask, PoolTask
from lorafleet_operator.shell.records import PodRecord, PoolKey

log = logging.getLogger(__name__)


class Wakes:
    """The tasks of a leader, none on a standby. Implements the watches' Listener.

    `broken` is set when a task ends in an error it can't go on from: the process should restart.
    """

    def __init__(self) -> None:
        self._parts: Parts | None = None
        self._tasks: dict[PoolKey, tuple[PoolTask, asyncio.Task[None]]] = {}
        self._orphans: tuple[OrphanTask, asyncio.Task[None]] | None = None
        self.broken = asyncio.Event()

    def lead(self, parts: Parts) -> None:
        """Start the tasks for all that is known, and from now on for all that comes."""
        self._parts = parts
        for pod in parts.watches.pods():
            parts.links.follow(pod)
        orphans = OrphanTask(parts)
        self._orphans = (orphans, self._spawn(orphans.run(), "orphans"))
        self.all_touched()

    async def stop(self) -> None:
        """End all tasks."""
        parts, self._parts = self._parts, None
        running = [task for _, task in self._tasks.values()]
        if self._orphans:
            running.append(self._orphans[1])
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._tasks.clear()
        if parts:
            await parts.links.close()

    def pool_touched(self, pool: PoolKey) -> None:
        """Wake the pool's task (started if need be), or the orphans' where there is no such pool."""
        if self._parts is None:
            return
        if pool in self._tasks and not self._tasks[pool][1].done():
            self._tasks[pool][0].wake()
        elif self._parts.observer.pool_exists(pool):
            task = PoolTask(pool, self._parts)
            self._tasks[pool] = (task, self._spawn(task.run(), f"pool {pool[0]}/{pool[1]}"))
            self._parts.metrics.pools.set(len(self._tasks))
        if self._orphans and not self._parts.observer.pool_exists(pool):
            self._orphans[0].wake()

    def all_touched(self) -> None:
        """Wake everybody."""
        if self._parts is None:
            return
        for pool in {*self._parts.watches.pool_keys(), *self._tasks}:
            self.pool_touched(pool)
        if self._orphans:
            self._orphans[0].wake()

    def pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """Follow the engine of a pod that lives, forget that of one that went."""
        if self._parts is None:
            return
        if old is not None and (new is None or new.uid != old.uid):
            self._parts.links.forget(old.uid)
        if new is not None:
            self._parts.links.follow(new)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if error := task.exception():
            log.error("task %s broke", task.get_name(), exc_info=error)
            self.broken.set()
            return
        for pool, (_, ended) in list(self._tasks.items()):
            if ended is task:
                del self._tasks[pool]
                if self._parts:
                    self._parts.metrics.pools.set(len(self._tasks))
                    self.pool_touched(pool)
