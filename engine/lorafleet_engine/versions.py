"""Versions entering and leaving the device. Used by loop.py, on its thread; answers are messages."""

from pathlib import Path

import torch

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.errors import DoesNotFitError
from lorafleet_engine.memory.geometry import blob_bytes
from lorafleet_engine.memory.pages import Owner
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import (
    AdapterLoaded,
    AdapterRejectCode,
    AdapterRejected,
    BlobRef,
    VersionKey,
    VersionState,
)
from lorafleet_engine.runner.assembly import EngineCore
from lorafleet_engine.runner.pool import DTYPES


class VersionKeeper:
    """Places blobs into the pool and takes them out again."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    @property
    def pages(self) -> int:
        """Pages that versions hold."""
        return self._core.pages.held(Owner.ADAPTER)

    def load(self, key: VersionKey, blob: BlobRef) -> AdapterLoaded | AdapterRejected:
        """Copy a blob into the pool, preempting KV where it holds the pages; a resident key is loaded already."""
        resident = self._core.residency.get(key)
        if resident is not None:
            draining = AdapterRejected(key, "draining", "the version is being unloaded")
            return draining if resident.draining else self._loaded(resident)
        wrong = self._judge(blob)
        if wrong is not None:
            return AdapterRejected(key, *wrong)
        pages = self._core.geometry.pages_of(blob.bytes)
        try:
            self._core.residency.check(blob.bytes, pages, blob.rank)
            self._core.scheduler.make_room(pages)
            data = _map_blob(blob)
            resident = self._core.residency.place(key, blob.bytes, pages, blob.rank)
        except DoesNotFitError as error:
            return AdapterRejected(key, "does_not_fit", str(error), error.needed, error.free)
        except (OSError, RuntimeError) as error:
            return AdapterRejected(key, "bad_blob", f"{blob.path} cannot be mapped: {error}")
        self._core.runner.pool.install(resident, data, blob.module_ranks)
        return self._loaded(resident)

    def unload(self, key: VersionKey) -> int | None:
        """Bytes freed (0 for an unknown key), or None while requests still use the version."""
        resident = self._core.residency.get(key)
        if resident is None:
            return 0
        return resident.bytes if self._core.residency.remove(key) else None

    def states(self) -> tuple[VersionState, ...]:
        """Every version on the device."""
        return tuple(
            VersionState(
                key=resident.key,
                phase="draining" if resident.draining else "resident",
                rank=resident.rank,
                bytes=resident.bytes,
                resident_bytes=self._page_bytes(resident),
                requests=resident.requests,
                served=resident.served,
            )
            for resident in self._core.residency.versions()
        )

    def _judge(self, blob: BlobRef) -> tuple[AdapterRejectCode, str] | None:
        """Why a blob cannot be this engine's, before its bytes are looked at."""
        core = self._core
        limit = core.placement.limits.rank_sum
        layers = len(blob.module_ranks)
        if DTYPES[blob.dtype] != core.placement.dtype:
            return "wrong_model", f"the blob holds {blob.dtype}, the engine computes in {core.placement.dtype}"
        if layers != core.config.shape.layers or any(len(ranks) != len(PROJECTIONS) for ranks in blob.module_ranks):
            return "wrong_model", f"the blob is for {layers} layers, the base model has {core.config.shape.layers}"
        if blob.rank > limit:
            return "rank_above_limit", f"rank {blob.rank} is above {limit}, the most ranks of one step"
        if blob.rank < 1 or blob.rank != max(max(ranks) for ranks in blob.module_ranks):
            return "bad_blob", f"rank {blob.rank} is not the largest of the module ranks"
        expected = blob_bytes(core.geometry, blob.module_ranks)
        if blob.bytes != expected or not Path(blob.path).is_file() or Path(blob.path).stat().st_size != expected:
            return "bad_blob", f"{blob.path} does not hold the {expected} bytes that its ranks need"
        return None

    def _loaded(self, resident: Resident) -> AdapterLoaded:
        return AdapterLoaded(resident.key, resident.bytes, self._page_bytes(resident))

    def _page_bytes(self, resident: Resident) -> int:
        return len(resident.pages) * self._core.geometry.page_bytes


def _map_blob(blob: BlobRef) -> torch.Tensor:
    dtype = DTYPES[blob.dtype]
    return torch.from_file(blob.path, shared=False, size=blob.bytes // dtype.itemsize, dtype=dtype)
