"""A process that holds one share of the model and runs what rank 0 runs. Started by gang.py through child.py.

It decides nothing. It ends with its pipe, at once: a collective that waits for the others would never end.
"""

import logging
import os
import sys
from multiprocessing.connection import Connection

import numpy as np

from lorafleet_contracts.capacity import BaseDoesNotFitError
from lorafleet_engine.errors import EngineError
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.model.shards import Shard
from lorafleet_engine.parallel.collective import Collective
from lorafleet_engine.parallel.copying import ShardCopier
from lorafleet_engine.parallel.messages import (
    FollowerConfig,
    FollowerFailed,
    FollowerHere,
    FollowerReady,
    Install,
    Installed,
    Step,
    ToFollower,
)
from lorafleet_engine.runner.assembly import EngineCore, Part, device_of, start_core

logger = logging.getLogger(__name__)
LOADING_WAIT_S = 0.001
"""How long to wait for rank 0 while a version is on its way, before looking after it again."""


def run_follower(connection: Connection) -> None:
    """Serve until the pipe ends, then leave the process. Errors go out as FollowerFailed first."""
    status = 0
    try:
        _serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except (EngineError, BaseDoesNotFitError) as error:
        status = _give_up(connection, str(error))
    except Exception as error:
        logger.exception("the process cannot go on")
        status = _give_up(connection, f"{type(error).__name__}: {error}")
    sys.stderr.flush()
    os._exit(status)


def _serve(connection: Connection) -> None:
    config: FollowerConfig = connection.recv()
    connection.send(FollowerHere())
    shard = Shard(config.rank, config.size)
    collective = Collective(shard, config.meeting, device_of(config.settings, shard))
    core = start_core(config.settings, Part(shard, collective.add_up))
    connection.send(FollowerReady(core.plan.pages, core.plan.table_rows))
    worker = _Worker(core, shard, connection)
    while True:
        worker.turn()


class _Worker:
    """One message after the other, in between the versions on their way."""

    def __init__(self, core: EngineCore, shard: Shard, connection: Connection) -> None:
        self._runner = core.runner
        self._connection = connection
        self._copier = ShardCopier(core.runner.pool, core.config.shape, shard)
        self._numbers: dict[int, int] = {}

    def turn(self) -> None:
        """Do what the next message says, if one comes in time."""
        if self._connection.poll(LOADING_WAIT_S if self._copier.busy else None):
            self._handle(self._connection.recv())
        for arrival in self._copier.poll():
            number = self._numbers.pop(arrival.resident.owner)
            self._connection.send(Installed(number, arrival.error))

    def _handle(self, message: ToFollower) -> None:
        match message:
            case Step():
                self._runner.follow(np.frombuffer(message.ints, dtype=np.int32), message.shape)
            case Install():
                self._install(message)

    def _install(self, message: Install) -> None:
        blob = message.blob
        try:
            file = os.open(blob.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._connection.send(Installed(message.number, f"{blob.path} cannot be read: {error}"))
            return
        resident = Resident("", message.rank, blob.bytes, message.pages, message.rows)
        self._numbers[resident.owner] = message.number
        self._copier.submit(resident, blob, file)


def _give_up(connection: Connection, message: str) -> int:
    """Say why; rank 0 may be gone itself."""
    try:
        connection.send(FollowerFailed(message))
    except OSError:
        logger.error("%s", message)
    return 1
