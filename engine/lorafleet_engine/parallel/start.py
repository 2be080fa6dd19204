"""Starts an engine that several processes share, from rank 0. Called by quality/merging.py for the loop."""

import os
import tempfile
from pathlib import Path

import torch

from lorafleet_engine.errors import DoesNotFitError
from lorafleet_engine.messages import LoopConfig
from lorafleet_engine.model.config import read_config
from lorafleet_engine.model.shards import Shard
from lorafleet_engine.parallel.gang import Gang, Lost
from lorafleet_engine.runner.assembly import EngineCore, Part, device_of, start_core


def start_team(settings: LoopConfig, lost: Lost) -> EngineCore:
    """Start the followers and this process's share; `lost` is called, on another thread, when a follower ends.

    Raises what start_core raises; UnsupportedModelError for a model that cannot be cut so, DoesNotFitError for too few
    devices, PeerLostError when a follower cannot start.
    """
    shard = Shard(0, settings.tensor_parallel)
    _check(settings, shard)
    file, meeting = tempfile.mkstemp(prefix="lorafleet-")
    os.close(file)
    gang = Gang(settings, meeting, lost)
    try:
        collective = gang.meet(shard, meeting, device_of(settings, shard))
        core = start_core(settings, Part(shard, collective.add_up, gang))
        gang.wait_ready(core.plan.pages, core.plan.table_rows)
    except BaseException:
        gang.close()
        Path(meeting).unlink(missing_ok=True)
        raise
    return core


def _check(settings: LoopConfig, shard: Shard) -> None:
    """What can be known before anything is started."""
    shard.config(read_config(Path(settings.model_dir)))
    if settings.device == "cuda" and torch.cuda.device_count() < shard.size:
        raise DoesNotFitError("GPUs of one tensor-parallel engine", shard.size, torch.cuda.device_count())
