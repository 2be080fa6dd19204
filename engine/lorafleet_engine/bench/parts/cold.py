"""Serving with nothing resident: the same requests, every adapter loaded at its first use, from three places.

Host: packed files in memory, as the loader's host tier keeps them. Disk: packed files on the disk tier of the real
loader process, their pages dropped, its host tier empty (read, check, host tier). Source: adapters as published, in
memory, through the real loader process with empty caches (fetch, digest, inspect, keep on disk, pack).
"""

import importlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lorafleet_contracts.digest import adapter_files, folder_digest
from lorafleet_engine.bench.bench import Bench, Case, median, rounded
from lorafleet_engine.bench.catalogue import Blob
from lorafleet_engine.bench.files import drop_pages, read_bandwidth
from lorafleet_engine.bench.serving import Traffic, traffic, warm
from lorafleet_engine.bench.session import BenchError, Session
from lorafleet_engine.bench.workload import write_adapters, write_model
from lorafleet_engine.messages import LoadAdapter, ToLoop

ZIPF = 1.0
MEASURED = 32
"""Files whose reading tells the disk's bandwidth."""
NOWHERE = "file:///nowhere"
"""The source of what must be found on the disk tier."""


def cases(bench: Bench) -> Iterator[Case]:
    """The first arm; each is held against the warm time of the same run. The others: disk.py, source.py."""
    yield Case("cold-host", Arms(bench).host)


@dataclass(slots=True)
class Arms:
    bench: Bench

    def host(self) -> dict[str, Any]:
        session, load = self._ready()
        seconds = self.bench.repeated(lambda _: _cold(session, load, load.distinct), warm=True)
        return self._record("cold-host", load, seconds, {})

    def disk(self) -> dict[str, Any]:
        child = _loader_module()
        session, load = self._ready()
        tiers = self._tiers(child)
        used = {blob.number for blob in load.distinct}
        first = self.bench.catalogue.take([next(n for n in range(self.bench.dims.catalogue) if n not in used)])
        paths = child.keep_packed(tiers, [*first, *load.distinct])
        drop_pages(paths)
        bandwidth = read_bandwidth(paths[:MEASURED])
        jobs = [(NOWHERE, child.digest_of(blob)) for blob in load.distinct]
        by_digest = dict(zip((digest for _, digest in jobs), load.distinct, strict=True))

        def measure(_: int) -> float:
            session.keep([])
            loader = child.LoaderChild(tiers)
            try:
                list(loader.pack([(NOWHERE, child.digest_of(blob)) for blob in first]))  # one that serves has started
                drop_pages(paths)
                return self._through(session, load, loader.pack(jobs), by_digest)
            finally:
                loader.close()

        load.seconds(session)  # warms up, if this engine has not served yet
        seconds = [measure(1)]
        allowed = median(self.bench.warm_seconds[ZIPF]) + sum(blob.ref.bytes for blob in load.distinct) / bandwidth
        more = {"disk_bytes_s": round(bandwidth), "over_warm_plus_read": round(median(seconds) / allowed, 4)}
        return self._record("cold-disk", load, seconds, more)

    def source(self) -> dict[str, Any]:
        """Once only: a second run would find caches."""
        child = _loader_module()
        session, load = self._ready()
        tiers = self._tiers(child)
        used = [blob.number for blob in load.distinct]
        spare = next(number for number in range(self.bench.dims.catalogue) if number not in used)
        adapters = write_adapters(tiers.base_dir.parent, [spare, *used], raw=self.bench.raw)
        first, *jobs = [
            (f"file://{each.directory.resolve()}", folder_digest(each.directory, adapter_files(each.directory)))
            for each in adapters
        ]
        by_digest = {digest: blob for (_, digest), blob in zip(jobs, load.distinct, strict=True)}
        session.keep([])
        loader = child.LoaderChild(tiers)
        try:
            list(loader.pack([first]))  # a loader that serves has long imported what it needs
            seconds = self._through(session, load, loader.pack(jobs), by_digest)
        finally:
            loader.close()
            tiers.empty()
        return self._record("cold-source", load, [seconds], {})

    def _through(self, session: Session, load: Traffic, arriving: Iterator[Any], by_digest: dict[str, Blob]) -> float:
        """Wall time with everything asked of the loader at once, each version loaded when it hands it over."""
        packed = ([replace(by_digest[each.facts.digest], ref=each.blob) for each in done] for done in arriving)
        seconds = session.run(_feed(session, load, packed)).seconds
        session.note_resident(load.distinct)
        return seconds

    def _tiers(self, child: Any) -> Any:
        """Empty tiers, and the base model's configuration for the loader."""
        options, dims = self.bench.options, self.bench.dims
        base = write_model(options.sources / f"{dims.name}-sources" / "base", self.bench.raw)
        tiers = child.Tiers(base, options.sources / "host-tier", options.disk / "disk-tier", dims.dtype)
        tiers.empty()
        return tiers

    def _ready(self) -> tuple[Session, Traffic]:
        session = self.bench.session(self.bench.plan())
        load = traffic(self.bench, ZIPF)
        warm(self.bench, session, ZIPF)
        return session, load

    def _record(self, state: str, load: Traffic, seconds: list[float], more: dict[str, Any]) -> dict[str, Any]:
        warm_wall = median(self.bench.warm_seconds[ZIPF])
        return {
            "case": "serve",
            "zipf": ZIPF,
            "state": state,
            "tok_s": load.tokens_per_second(median(seconds)),
            "wall_s": median(seconds),
            "warm_wall_s": warm_wall,
            "over_warm": round(median(seconds) / warm_wall, 4),
            "loaded": len(load.distinct),
            "loaded_bytes": sum(blob.ref.bytes for blob in load.distinct),
            **more,
            "repeats_s": rounded(seconds),
            "caps": self.bench.plan().caps(),
        }


def _loader_module() -> Any:
    """bench/loader_child.py. Raises BenchError where what the loader needs is not installed."""
    try:
        importlib.import_module("lorafleet_engine.loader.jobs")
        importlib.import_module("lorafleet_engine.loader.packer")
        return importlib.import_module("lorafleet_engine.bench.loader_child")
    except ModuleNotFoundError as error:
        raise BenchError(f"the loader needs {error.name}, which is not installed here") from error


def _cold(session: Session, load: Traffic, blobs: Sequence[Blob]) -> float:
    """Wall time with every load and every request sent at once, loads in order of first use."""
    session.keep([])
    loads = [LoadAdapter(blob.key, blob.ref) for blob in blobs]
    seconds = session.run([[*loads, *load.requests(session)]]).seconds
    session.note_resident(blobs)
    return seconds


def _feed(session: Session, load: Traffic, arriving: Iterable[Sequence[Blob]]) -> Iterator[Sequence[ToLoop]]:
    """Each adapter as the loader hands it over, with the requests that have waited for it."""
    waiting: defaultdict[str, list[ToLoop]] = defaultdict(list)
    for request in load.requests(session):
        waiting[request.adapter or ""].append(request)
    for blobs in arriving:
        yield [message for blob in blobs for message in (LoadAdapter(blob.key, blob.ref), *waiting[blob.key])]
