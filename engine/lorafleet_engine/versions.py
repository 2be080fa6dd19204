"""Versions entering and leaving the device. Used by loop.py, on its thread; answers are messages.

A load takes its pages and rows at once, preempting KV where it must, and is answered by `poll` when its bytes are
there: runner/copier.py brings them beside the steps.
"""

import os
import time
from collections.abc import Callable, Iterable

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.errors import DoesNotFitError
from lorafleet_engine.memory.geometry import blob_bytes, pool_geometry
from lorafleet_engine.memory.pages import Owner
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import (
    AdapterLoaded,
    AdapterRejectCode,
    AdapterRejected,
    AdapterUnloaded,
    BlobRef,
    VersionKey,
    VersionPhase,
    VersionState,
)
from lorafleet_engine.runner.assembly import EngineCore
from lorafleet_engine.runner.copier import Arrival, Copier, make_copier
from lorafleet_engine.runner.pool import DTYPES

GATHER_S = 0.008
"""How long the first request of a version that has just arrived may wait for others that are being loaded."""
FIRST_REQUEST_S = 0.001
"""How long after its arrival a version's first request may still be on its way here."""
News = AdapterLoaded | AdapterRejected | AdapterUnloaded


class VersionKeeper:
    """Places blobs into the pool and takes them out again."""

    def __init__(
        self, core: EngineCore, clock: Callable[[], float] = time.monotonic, copier: Copier | None = None
    ) -> None:
        self._core = core
        self._clock = clock
        self._fresh: dict[Resident, float] = {}
        pool, whole = core.runner.pool, core.config.shape
        own = make_copier(pool) if core.team is None else core.team.copier(pool, whole)
        self._copier = copier or own
        self._whole = pool_geometry(whole, core.geometry.dtype_bytes)

    @property
    def pages(self) -> int:
        """Pages that versions hold."""
        return self._core.pages.held(Owner.ADAPTER)

    @property
    def loading(self) -> bool:
        """Whether a load is under way, so that poll should be called soon."""
        return self._copier.busy

    def gathers(self, adapters: Iterable[Resident | None]) -> bool:
        """Whether the first step of an idle engine had better wait a moment.

        `adapters` are those of its requests, None for the base and for what has begun. Only where all of them have just
        arrived and more are on their way, or are here but their requests are not yet: versions asked for together then
        begin together instead of one prefill after another.
        """
        if not self._fresh:
            return False
        now = self._clock()
        self._fresh = {each: at for each, at in self._fresh.items() if now - at < GATHER_S}
        if not self._fresh or not all(adapter in self._fresh for adapter in adapters):
            return False
        idle = (at for each, at in self._fresh.items() if not each.requests)
        return self._copier.busy or any(now - at < FIRST_REQUEST_S for at in idle)

    def load(self, key: VersionKey, blob: BlobRef) -> AdapterLoaded | AdapterRejected | None:
        """Start to bring a blob into the pool, preempting KV where it holds the pages; None: poll has the answer.

        A resident key is loaded already; one that is being loaded is answered once.
        """
        resident = self._core.residency.get(key)
        if resident is not None:
            return self._known(resident)
        wrong = self._judge(blob)
        if wrong is not None:
            return AdapterRejected(key, *wrong)
        try:
            file = _open(blob)
        except OSError as error:
            return AdapterRejected(key, "bad_blob", f"{blob.path} cannot be read: {error}")
        try:
            resident = self._place(key, blob)
        except DoesNotFitError as error:
            os.close(file)
            return AdapterRejected(key, "does_not_fit", str(error), error.needed, error.free)
        self._copier.submit(resident, blob, file)
        return None

    def poll(self) -> list[News]:
        """News of loads whose copies have ended since the last call. Never waits."""
        return [news for arrival in self._copier.poll() for news in self._arrived(arrival)]

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
                phase=_phase(resident),
                rank=resident.rank,
                bytes=resident.bytes,
                resident_bytes=self._page_bytes(resident),
                requests=resident.requests,
                served=resident.served,
            )
            for resident in self._core.residency.versions()
        )

    def _known(self, resident: Resident) -> AdapterLoaded | AdapterRejected | None:
        if resident.draining:
            return AdapterRejected(resident.key, "draining", "the version is being unloaded")
        return None if resident.loading else self._loaded(resident)

    def _place(self, key: VersionKey, blob: BlobRef) -> Resident:
        """Take pages and rows. Raises DoesNotFitError, having changed nothing but preempted KV."""
        pages = self._core.geometry.pages_of(blob.module_ranks)
        size = blob_bytes(self._core.geometry, blob.module_ranks)
        self._core.residency.check(size, pages, blob.rank)
        self._core.scheduler.make_room(pages)
        resident = self._core.residency.place(key, size, pages, blob.rank)
        resident.loading = True
        return resident

    def _arrived(self, arrival: Arrival) -> list[News]:
        resident = arrival.resident
        unwanted: list[News] = [AdapterUnloaded(resident.key, resident.bytes)] if resident.draining else []
        if arrival.error:
            self._core.residency.discard(resident)
            return [AdapterRejected(resident.key, "bad_blob", arrival.error), *unwanted]
        if self._core.residency.arrive(resident):
            return [AdapterRejected(resident.key, "draining", "it was unloaded while it was loaded"), *unwanted]
        self._fresh[resident] = self._clock()
        return [self._loaded(resident)]

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
        expected = blob_bytes(self._whole, blob.module_ranks)
        if blob.bytes != expected:
            return "bad_blob", f"{blob.path} does not hold the {expected} bytes that its ranks need"
        return None

    def _loaded(self, resident: Resident) -> AdapterLoaded:
        return AdapterLoaded(resident.key, resident.bytes, self._page_bytes(resident))

    def _page_bytes(self, resident: Resident) -> int:
        return len(resident.pages) * self._core.geometry.page_bytes


def _phase(resident: Resident) -> VersionPhase:
    if resident.draining:
        return "draining"
    return "loading" if resident.loading else "resident"


def _open(blob: BlobRef) -> int:
    """The packed file, opened for reading: it may be deleted meanwhile. Raises OSError, also for a wrong length."""
    file = os.open(blob.path, os.O_RDONLY | os.O_CLOEXEC)
    if (size := os.fstat(file).st_size) != blob.bytes:
        os.close(file)
        raise OSError(f"it holds {size} bytes, not {blob.bytes}")
    return file
