"""Packed files into the pool's pages, beside the steps. Owned by versions.py; submit and poll run on the loop's thread.

On CUDA reader threads read parts of the files into pinned buffers and copy them to the pages, each on a stream of its
own; steps never wait for them, and the loop's thread makes no call to the driver to learn that they have ended: another
thread waits for that. A copy starts only after the steps that were launched when the version took its pages, because
those may still read what the pages held before. On a CPU the file is read straight into the pages, at once:
the copy would compete with the steps for the same cores anyway.
"""

import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

import torch

from lorafleet_engine.memory.geometry import page_slices
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.runner.batch_copy import BatchCopy
from lorafleet_engine.runner.pool import DevicePool
from lorafleet_engine.runner.row_staging import RowStaging

READERS = 8
SLOTS = 2
"""Pinned buffers of a reader: while one is copied to the device the next is filled."""
NICENESS = 5
"""Of the readers: where there are fewer cores than threads the loop's comes first."""
PART_BYTES = 8 << 20
"""Small enough that all buffers stay in the processors' cache: from 16 MiB on, reading halves in speed."""
MOST_VECTORS = 1024
"""Buffers that one preadv takes (IOV_MAX)."""

Slices = tuple[tuple[int, tuple[int, int]], ...]
"""Some pages of a version: (page, (first byte of the file, bytes)), one after another in the file."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A version whose copy has ended; `error` says why its bytes did not come."""

    resident: Resident
    error: str


class Copier(Protocol):
    """Copies files into pages. Nothing else writes to a submitted version's pages until it has arrived."""

    @property
    def busy(self) -> bool:
        """Whether anything submitted has not arrived."""
        ...

    def submit(self, resident: Resident, blob: BlobRef, file: int) -> None:
        """Start to fill a placed version from an open file, which is closed in the end."""
        ...

    def poll(self) -> list[Arrival]:
        """What has arrived since the last call. Never waits."""
        ...


def make_copier(pool: DevicePool) -> Copier:
    """The copier that suits the pool's device."""
    return StreamCopier(pool) if pool.memory.device.type == "cuda" else DirectCopier(pool)


class DirectCopier:
    """Reads into the pages of a pool in host memory, within submit."""

    def __init__(self, pool: DevicePool) -> None:
        self._pool = pool
        self._memory = memoryview(pool.page_bytes.view(-1).numpy().data)
        self._arrived: list[Arrival] = []

    @property
    def busy(self) -> bool:
        """See Copier."""
        return bool(self._arrived)

    def submit(self, resident: Resident, blob: BlobRef, file: int) -> None:
        """See Copier."""
        size, error = self._pool.geometry.page_bytes, ""
        try:
            for part in parts(self._pool, resident, blob):
                read_part(file, part, [self._memory[page * size : page * size + count] for page, (_, count) in part])
            self._pool.enter_rows(resident, blob.module_ranks)
        except OSError as problem:
            error = str(problem)
        finally:
            os.close(file)
        self._arrived.append(Arrival(resident, error))

    def poll(self) -> list[Arrival]:
        """See Copier."""
        arrived, self._arrived = self._arrived, []
        return arrived


@dataclass(slots=True, eq=False)
class _Install:
    """One version on its way. `left` tasks are not issued yet; afterwards `events`, the last of each reader, say when
    the device is done."""

    pool: DevicePool
    resident: Resident
    blob: BlobRef
    file: int
    after: torch.cuda.Event
    left: int
    error: str = ""
    events: dict[int, torch.cuda.Event] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def settle(self, reader: int, event: torch.cuda.Event | None, error: str) -> bool:
        """Note a task that was issued, or failed; True for the last one."""
        with self.lock:
            self.error = self.error or error
            if event is not None:
                self.events[reader] = event
            self.left -= 1
            return self.left == 0

    def wait(self) -> Arrival:
        """Wait until the device has done all that was issued."""
        try:
            for event in self.events.values():
                event.synchronize()
        except RuntimeError as problem:
            self.error = self.error or str(problem)
        return Arrival(self.resident, self.error)


@dataclass(frozen=True, slots=True)
class _Task:
    """Some pages of an install, or (None) its rows in the row table."""

    install: _Install
    part: Slices | None


class StreamCopier:
    """Reader threads with pinned buffers and streams. The threads end when the copier is no longer referred to."""

    def __init__(self, pool: DevicePool) -> None:
        self._pool = pool
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._arrived: deque[Arrival] = deque()
        self._pending = 0
        issued: SimpleQueue[_Install | None] = SimpleQueue()
        readers = [_Reader(number, pool, self._tasks, issued) for number in range(READERS)]
        threads = [threading.Thread(target=reader.run, name="copier", daemon=True) for reader in readers]
        waiter = threading.Thread(target=_wait, args=(issued, self._arrived), name="arrivals", daemon=True)
        for thread in (*threads, waiter):
            thread.start()
        weakref.finalize(self, _end, self._tasks, threads, issued, waiter)

    @property
    def busy(self) -> bool:
        """See Copier."""
        return self._pending > 0

    def submit(self, resident: Resident, blob: BlobRef, file: int) -> None:
        """See Copier."""
        after = torch.cuda.current_stream(self._pool.memory.device).record_event()
        works = parts(self._pool, resident, blob)
        install = _Install(self._pool, resident, blob, file, after, len(works) + 1)
        self._pending += 1
        self._tasks.put(_Task(install, None))
        for part in works:
            self._tasks.put(_Task(install, part))

    def poll(self) -> list[Arrival]:
        """See Copier."""
        arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
        self._pending -= len(arrived)
        return arrived


class _Reader:
    """One thread's buffers and stream. Refers to no copier and, between tasks, to no pool."""

    def __init__(
        self,
        number: int,
        pool: DevicePool,
        tasks: "SimpleQueue[_Task | None]",
        issued: "SimpleQueue[_Install | None]",
    ) -> None:
        self._number = number
        self._tasks = tasks
        self._issued = issued
        self._device = pool.memory.device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        pages = part_pages(pool)
        shape = (SLOTS, pages, pool.geometry.page_bytes)
        self._slots = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        self._rows = [[memoryview(row.numpy().data) for row in slot] for slot in self._slots]
        self._batch = BatchCopy()
        self._used: list[torch.cuda.Event | None] = [None] * SLOTS
        self._next = 0
        self._entries = RowStaging(pool, self._stream)

    def run(self) -> None:
        """Work off tasks until the end is announced."""
        torch.cuda.set_device(self._device)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (task := self._tasks.get()) is not None:
            self._work(task)
            del task

    def _work(self, task: _Task) -> None:
        install, event, error = task.install, None, ""
        try:
            if not install.error:
                self._stream.wait_event(install.after)
                event = self._enter(install) if task.part is None else self._copy(install, task.part)
        except Exception as problem:  # noqa: BLE001  (whatever it is, the version must be answered for)
            error = f"{type(problem).__name__}: {problem}"
        if install.settle(self._number, event, error):
            os.close(install.file)
            self._issued.put(install)

    def _enter(self, install: _Install) -> torch.cuda.Event:
        self._entries.enter(install.pool, install.resident, install.blob.module_ranks)
        event: torch.cuda.Event = self._stream.record_event(_blocking())
        return event

    def _copy(self, install: _Install, part: Slices) -> torch.cuda.Event:
        number, self._next = self._next, (self._next + 1) % SLOTS
        used = self._used[number]
        if used is not None:
            used.synchronize()
        rows, sizes = self._rows[number], [count for _, (_, count) in part]
        read_part(install.file, part, [row[:count] for row, count in zip(rows, sizes, strict=False)])
        step, slot = install.pool.geometry.page_bytes, self._slots[number].data_ptr()
        first = install.pool.memory.data_ptr()
        targets = [first + page * step for page, _ in part]
        self._batch(targets, range(slot, slot + len(part) * step, step), sizes, self._stream)
        event: torch.cuda.Event = self._stream.record_event(_blocking())
        self._used[number] = event
        return event


def _blocking() -> torch.cuda.Event:
    """An event whose waiters sleep: they would take the loop's cores otherwise."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


def part_pages(pool: DevicePool) -> int:
    """Pages that are read and copied as one."""
    return min(max(PART_BYTES // pool.geometry.page_bytes, 1), MOST_VECTORS)


def parts(pool: DevicePool, resident: Resident, blob: BlobRef) -> list[Slices]:
    """A version's pages in the pieces in which they are copied."""
    pages = tuple(zip(resident.pages, page_slices(pool.geometry, blob.module_ranks), strict=True))
    step = part_pages(pool)
    return [pages[start : start + step] for start in range(0, len(pages), step)]


def read_part(file: int, part: Slices, buffers: list[memoryview]) -> None:
    """Fill the buffers, one for each page, from the file. Raises OSError, also where the file ends too early."""
    expected = sum(count for _, (_, count) in part)
    if os.preadv(file, buffers, part[0][1][0]) != expected:
        raise OSError("the packed file is shorter than its adapter")


def _wait(issued: "SimpleQueue[_Install | None]", arrived: "deque[Arrival]") -> None:
    """Pass on versions when the device has them, one after another as they were issued."""
    while (install := issued.get()) is not None:
        arrived.append(install.wait())
        del install


def _end(
    tasks: "SimpleQueue[_Task | None]",
    threads: list[threading.Thread],
    issued: "SimpleQueue[_Install | None]",
    waiter: threading.Thread,
) -> None:
    """Let the threads finish. Also at the interpreter's exit, which must not find them inside the driver."""
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
    issued.put(None)
    if waiter is not threading.current_thread():
        waiter.join()
