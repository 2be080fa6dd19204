"""The serving workload: all requests at once, adapters drawn by popularity. Used by most of bench/parts/."""

from dataclasses import dataclass

from lorafleet_engine.bench.bench import Bench
from lorafleet_engine.bench.catalogue import Blob
from lorafleet_engine.bench.session import Session
from lorafleet_engine.bench.workload import zipf_ids
from lorafleet_engine.messages import Generate

SEED = 7
"""Of prompts and adapters alike, as for the rivals."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """`adapters` of the requests, in order (None: the base)."""

    bench: Bench
    adapters: tuple[Blob | None, ...]

    @property
    def distinct(self) -> list[Blob]:
        """The adapters that the requests use, in order of first use."""
        return list({blob.key: blob for blob in self.adapters if blob is not None}.values())

    def requests(self, session: Session) -> list[Generate]:
        """The requests, with new ids."""
        dims = self.bench.dims
        drawn = self.bench.prompts(dims.requests, dims.request_prompt, SEED)
        return session.requests(drawn, self.adapters, dims.request_answer)

    def seconds(self, session: Session) -> float:
        """Wall time of all requests, every adapter being resident."""
        return session.run([self.requests(session)]).seconds

    def tokens_per_second(self, seconds: float) -> float:
        """Generated tokens over the wall time."""
        return round(self.bench.dims.requests * self.bench.dims.request_answer / seconds, 1)


def traffic(bench: Bench, zipf: float | None) -> Traffic:
    """The requests of one popularity; None = all on the base."""
    count = bench.dims.requests
    if zipf is None:
        return Traffic(bench, (None,) * count)
    return Traffic(bench, tuple(bench.catalogue.take(zipf_ids(count, bench.dims.catalogue, zipf, SEED))))


def warm(bench: Bench, session: Session, zipf: float | None) -> list[float]:
    """Wall times of the traffic with all its adapters resident, which they are afterwards; measured once a run."""
    load = traffic(bench, zipf)
    session.keep(load.distinct)
    if zipf not in bench.warm_seconds:
        served = zipf is not None and any(other is not None for other in bench.warm_seconds)
        bench.warm_seconds[zipf] = bench.repeated(lambda _: load.seconds(session), warm=served)
    return bench.warm_seconds[zipf]
