"""Rank 0's side of its followers: starts them, tells them what to run, notices when one ends. Used by start.py.

A follower that ends takes the engine with it: its share of the model is gone, and on CUDA the step that waits for it
never ends. A thread for each waits for its process, so that this is noticed whatever the loop is doing.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt
import torch

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.errors import PeerLostError
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import BlobRef, LoopConfig
from lorafleet_engine.model.merged import LayerMatrices
from lorafleet_engine.model.shards import Shard
from lorafleet_engine.parallel.collective import Collective
from lorafleet_engine.parallel.copying import ShardCopier, borrow
from lorafleet_engine.parallel.messages import (
    FollowerConfig,
    FollowerFailed,
    FollowerReady,
    FromFollower,
    Install,
    Installed,
    Lend,
    Merge,
    Share,
    Step,
    ToFollower,
)
from lorafleet_engine.runner.copier import Arrival, Copier
from lorafleet_engine.runner.packing import StepShape
from lorafleet_engine.runner.pool import DevicePool

logger = logging.getLogger(__name__)
END_S = 10.0
"""How long a follower may take to end once its pipe is closed."""

Lost = Callable[[str], None]
"""Called on a thread of its own with what is to be said when a follower has ended."""


def ignore(message: str) -> None:
    """A Lost for those who notice it at the next step."""


class Follower:
    """One process and this end of its pipe; sends and receives on the loop's thread, the watch on its own."""

    def __init__(self, config: FollowerConfig, lost: Lost) -> None:
        self.rank = config.rank
        self._lost = lost
        self._closing = False
        self._last_words = ""
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "lorafleet_engine.child", "follower"),
                    *(str(theirs.fileno()), str(os.getpid()), logging.getLevelName(logging.root.level)),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(ours.detach())
        logger.info("rank %d of %d started, pid %d", self.rank, config.size, self.process.pid)
        threading.Thread(target=self._watch, name=f"rank-{self.rank}", daemon=True).start()
        self.send(config)

    def send(self, message: ToFollower | FollowerConfig) -> None:
        """Hand over one message. Raises PeerLostError."""
        try:
            self._connection.send(message)
        except OSError as error:
            raise PeerLostError(f"rank {self.rank} has ended") from error

    def receive(self) -> FromFollower:
        """Wait for its next message. Raises PeerLostError."""
        while not self._connection.poll(0.05):
            if self.process.poll() is not None:
                raise PeerLostError(self._epitaph())
        return self._take()

    def news(self) -> list[FromFollower]:
        """All messages that are there. Raises PeerLostError."""
        messages = []
        while self._connection.poll(0):
            messages.append(self._take())
        return messages

    def close(self) -> None:
        """End the process."""
        self._closing = True
        with self._lock:
            self._connection.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _take(self) -> FromFollower:
        try:
            with self._lock:
                message: FromFollower = self._connection.recv()
        except (EOFError, OSError) as error:
            raise PeerLostError(f"rank {self.rank} has ended") from error
        if isinstance(message, FollowerFailed):
            self._last_words = message.message
            raise PeerLostError(self._epitaph())
        return message

    def _watch(self) -> None:
        self.process.wait()
        if not self._closing:
            self._lost(self._epitaph())

    def _epitaph(self) -> str:
        """Why it ended, as far as is known."""
        with self._lock:
            while not self._closing and not self._last_words:
                try:
                    message = self._connection.recv() if self._connection.poll(0) else None
                except (EOFError, OSError):
                    break
                if message is None:
                    break
                if isinstance(message, FollowerFailed):
                    self._last_words = message.message
        status = self.process.poll()
        how = "" if status is None else f" with status {status}"
        return f"rank {self.rank} ended{how}" + (f": {self._last_words}" if self._last_words else "")


class Gang:
    """The Team of rank 0 (see runner/team.py)."""

    def __init__(self, settings: LoopConfig, meeting: str, lost: Lost) -> None:
        """Start the followers; they load their shares of the model meanwhile."""
        size = settings.tensor_parallel
        self._collective: Collective | None = None
        self.followers = [Follower(FollowerConfig(settings, rank, size, meeting), lost) for rank in range(1, size)]

    def meet(self, shard: Shard, meeting: str, device: torch.device) -> Collective:
        """Wait until all have started, then meet them. Raises PeerLostError."""
        for follower in self.followers:
            follower.receive()
        self._collective = Collective(shard, meeting, device)
        return self._collective

    def wait_ready(self, pages: int, table_rows: int) -> None:
        """Wait until every share is in place. Raises PeerLostError, also for a pool of another size."""
        for follower in self.followers:
            ready = follower.receive()
            if ready != FollowerReady(pages, table_rows):
                raise PeerLostError(f"rank {follower.rank} planned {ready}, rank 0 {pages} pages and {table_rows} rows")

    def step(self, ints: npt.NDArray[np.int32], shape: StepShape) -> None:
        """See Team."""
        self.tell(Step(shape, ints.tobytes()))

    def share(self, tokens: torch.Tensor) -> None:
        """See Team."""
        self.tell(Share())
        assert self._collective is not None
        self._collective.share(tokens)

    def matrices(self, pool: DevicePool, resident: Resident, layer: int) -> LayerMatrices:
        """See Team."""
        self.tell(Lend(resident.rows, layer))
        assert self._collective is not None
        return borrow(self._collective, pool.matrices_of(resident, layer))

    def merge(self, blob: BlobRef) -> None:
        """See Team."""
        self.tell(Merge(blob))

    def copier(self, pool: DevicePool, whole: ModelShape) -> Copier:
        """See Team."""
        return GangCopier(self, ShardCopier(pool, whole, Shard(0, 1 + len(self.followers))))

    def close(self) -> None:
        """See Team."""
        if self._collective is not None:
            self._collective.close()
        for follower in self.followers:
            follower.close()

    def tell(self, message: ToFollower) -> None:
        """Hand one message to every follower. Raises PeerLostError."""
        for follower in self.followers:
            follower.send(message)


class GangCopier:
    """A version has arrived when every device has its share."""

    def __init__(self, gang: Gang, own: ShardCopier) -> None:
        self._gang = gang
        self._own = own
        self._waiting: dict[int, Resident] = {}
        self._missing: dict[int, int] = {}
        self._errors: dict[int, str] = {}
        self._here: deque[Arrival] = deque()
        self._number = 0

    @property
    def busy(self) -> bool:
        """See Copier."""
        return bool(self._waiting)

    def submit(self, resident: Resident, blob: BlobRef, file: int) -> None:
        """See Copier."""
        number, self._number = self._number, self._number + 1
        self._waiting[number] = resident
        self._missing[number] = 1 + len(self._gang.followers)
        self._gang.tell(Install(number, resident.rank, resident.pages, resident.rows, blob))
        self._own.submit(resident, blob, file)

    def poll(self) -> list[Arrival]:
        """See Copier."""
        numbers = {id(resident): number for number, resident in self._waiting.items()}
        for arrival in self._own.poll():
            self._settle(numbers[id(arrival.resident)], arrival.error)
        for follower in self._gang.followers if self._waiting else ():
            for message in follower.news():
                if isinstance(message, Installed):
                    self._settle(message.number, f"rank {follower.rank}: {message.error}" if message.error else "")
        done = [number for number, missing in self._missing.items() if not missing]
        return [self._arrive(number) for number in done]

    def _settle(self, number: int, error: str) -> None:
        self._missing[number] -= 1
        if error:
            self._errors[number] = error

    def _arrive(self, number: int) -> Arrival:
        del self._missing[number]
        return Arrival(self._waiting.pop(number), self._errors.pop(number, ""))
