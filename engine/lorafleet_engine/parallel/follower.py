"""A process that holds one share of the model and runs what rank 0 runs. Started by gang.py through child.py.

It decides nothing. It ends with its pipe, at once: a collective that waits for the others would never end.
"""

import logging
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from lorafleet_contracts.capacity import BaseDoesNotFitError
from lorafleet_engine.errors import EngineError
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.model.merged import MergedSource, read_floats, unpack_blob
from lorafleet_engine.model.shards import Shard
from lorafleet_engine.model.weights import SafetensorsSource
from lorafleet_engine.parallel.collective import Collective
from lorafleet_engine.parallel.copying import ShardCopier, borrow
from lorafleet_engine.parallel.messages import (
    FollowerConfig,
    FollowerFailed,
    FollowerHere,
    FollowerReady,
    Install,
    Installed,
    Lend,
    Merge,
    Share,
    Step,
    ToFollower,
)
from lorafleet_engine.pauses import set_aside
from lorafleet_engine.runner.assembly import EngineCore, Part, device_of, overwrite_weights, start_core

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
    set_aside()
    connection.send(FollowerReady(core.plan.pages, core.plan.table_rows))
    worker = _Worker(core, config, collective, connection)
    while True:
        worker.turn()


class _Worker:
    """One message after the other, in between the versions on their way."""

    def __init__(
        self, core: EngineCore, config: FollowerConfig, collective: Collective, connection: Connection
    ) -> None:
        self._core = core
        self._collective = collective
        self._model_dir = Path(config.settings.model_dir)
        self._connection = connection
        self._copier = ShardCopier(core.runner.pool, core.config.shape, core.shard)
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
                self._core.runner.follow(np.frombuffer(message.ints, dtype=np.int32), message.shape)
            case Share():
                self._collective.share(self._core.runner.tokens)
            case Install():
                self._install(message)
            case Lend():
                resident = Resident("", len(message.rows), 0, (), message.rows)
                borrow(self._collective, self._core.runner.pool.matrices_of(resident, message.layer))
            case Merge():
                self._merge(message.blob)

    def _merge(self, blob: BlobRef) -> None:
        core = self._core
        with SafetensorsSource(self._model_dir, core.placement.device, torch.float32) as source:
            matrices = unpack_blob(read_floats(blob), blob.module_ranks, core.config.shape)
            overwrite_weights(core, MergedSource(source, matrices, core.placement.dtype))

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
