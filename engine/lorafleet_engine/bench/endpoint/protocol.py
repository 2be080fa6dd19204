"""The benchmark protocol, phase by phase, into one document. Used by session.py.

The base's saturation; both skews' saturation; then, at one arrival rate for all: the base alone and, for each skew,
cold and warm. Where an engine's admin port is given its caches are emptied before a cold phase, and single requests are
timed from each tier. Without it the only cold phase is the first one, whatever the endpoint holds then.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lorafleet_contracts.admin import Tier
from lorafleet_engine.bench.endpoint.asks import Arrival, Ask, Sizes, at_rate, name_adapters, name_base, poisson
from lorafleet_engine.bench.endpoint.client import Client
from lorafleet_engine.bench.endpoint.control import Control, FirstSeen
from lorafleet_engine.bench.endpoint.drive import Hooks, Phase, closed_loop, open_loop
from lorafleet_engine.bench.endpoint.figures import Slo, error_examples, phase_figures
from lorafleet_engine.bench.endpoint.models import Catalogue, Model
from lorafleet_engine.bench.endpoint.progress import Progress

SAMPLE_S = 0.25
TIERS = (Tier.DISK, Tier.HOST, Tier.GPU)
"""Slowest first, as a request on one leaves the adapter on the device."""
CAUTION = 0.5
"""Of `load`, where the cold phase comes before anybody knows what adapters cost."""
SWEPT = ("requests_per_s", "tokens_per_s", "ttft_ms", "itl_ms", "errors")
BEHIND_MS = 20.0
"""A client whose p99 is so far behind measures itself."""


Run = Callable[[Phase, Hooks], Awaitable[None]]


class ProtocolError(Exception):
    """The endpoint cannot be measured; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`requests` of an open-loop phase, or those of `trace`; `rate` a second, None = `load` of saturation, which
    `streams` at a time and `saturation_requests` find; `tier_samples` adapters are timed alone from each tier."""

    skews: tuple[float, ...]
    requests: int
    sizes: Sizes
    trace: tuple[Arrival, ...]
    rate: float | None
    load: float
    streams: int
    saturation_requests: int
    tier_samples: int
    slo: Slo
    seed: int


@dataclass(slots=True)
class Protocol:
    """One run. `document` grows phase by phase, so that an interrupted run keeps what is finished."""

    client: Client
    catalogue: Catalogue
    settings: Settings
    control: Control | None
    progress: Progress
    document: dict[str, Any]
    _base_rate: float | None = None
    _slowest: float | None = None
    _phases: list[dict[str, Any]] = field(default_factory=list)

    async def run(self) -> None:
        """All phases. Raises ControlError and what an endpoint without any answer gives: ProtocolError."""
        self.document["phases"] = self._phases
        follower = None
        if self.control is not None:
            await self.control.residency.refresh()
            follower = asyncio.create_task(self.control.residency.follow(SAMPLE_S))
        try:
            await self._all()
        finally:
            if follower is not None:
                follower.cancel()
                with suppress(asyncio.CancelledError):
                    await follower

    async def saturations(self, name: str) -> dict[str, Any]:
        """Saturation of each skew with all adapters on the device, and the KV memory that the engine began with."""
        assert self.control is not None
        state = await self.control.residency.refresh()
        found: dict[str, Any] = {"kv_tokens": None if state.memory is None else state.memory.kv_tokens}
        for zipf in self.settings.skews:
            asks = name_adapters(self._closed(), self.catalogue.adapters, zipf, self.settings.seed + 1)
            await self._saturate(f"{name}, zipf {zipf:g}", asks, zipf)
            found[f"zipf {zipf:g}"] = {name: self._phases[-1][name] for name in SWEPT}
        return found

    async def _all(self) -> None:
        settings = self.settings
        if self.catalogue.base is not None:
            self._base_rate = await self._saturate("base", name_base(self._closed(), self.catalogue.base))
        if not self._evicts:
            caution = settings.load * CAUTION * self._base_rate if self._base_rate else None
            rate = settings.rate or caution or self._no_rate()
            await self._open("cold", settings.skews[0], self._arrivals(rate))
        for zipf in settings.skews:
            asks = name_adapters(self._closed(), self.catalogue.adapters, zipf, settings.seed + 1)
            found = await self._saturate(f"zipf {zipf:g}", asks, zipf)
            self._slowest = min(found, self._slowest or found)
            self._note_penalty(zipf, found)
        arrivals = self._arrivals(settings.rate or settings.load * (self._slowest or 0.0))
        if self.catalogue.base is not None:
            await self._open("base", None, arrivals)
        for zipf in settings.skews:
            if self._evicts:
                await self._place(self.catalogue.adapters, Tier.DISK)
                await self._open("cold", zipf, arrivals)
            await self._open("warm", zipf, arrivals)
        if self._evicts:
            await self._tiers()

    @property
    def _evicts(self) -> bool:
        return self.control is not None and self.control.admin is not None

    def _closed(self) -> list[Arrival]:
        settings = self.settings
        if settings.trace:
            return list(settings.trace[: settings.saturation_requests])
        return poisson(1.0, settings.saturation_requests, settings.sizes, settings.seed + 1)

    def _arrivals(self, rate: float) -> list[Arrival]:
        settings = self.settings
        if settings.trace:
            return at_rate(settings.trace, rate)
        return poisson(rate, settings.requests, settings.sizes, settings.seed)

    def _no_rate(self) -> float:
        raise ProtocolError(
            "nothing says how fast requests should come in the cold phase: give --rate, or a base model (--base), or"
            " the ports of an engine of ours so that it can be emptied later"
        )

    async def _saturate(self, name: str, asks: Sequence[Ask], zipf: float | None = None) -> float:
        """Requests a second with all streams full. Raises ProtocolError for none, where the rate follows from it."""
        phase, streams = Phase(f"{name}, saturation", len(asks)), self.settings.streams
        about = {"arm": _arm(asks), "state": "saturation", "zipf": zipf, "streams": streams}
        figures = await self._measure(phase, about, self._closed_run(asks, streams))
        rate: float = figures["requests_per_s"] or 0.0
        if not rate and self.settings.rate is None:
            raise ProtocolError(f"{phase.name}: no request was answered: {error_examples(phase.outcomes)}")
        return rate

    def _closed_run(self, asks: Sequence[Ask], streams: int) -> Run:
        return lambda phase, hooks: closed_loop(self.client, asks, streams, phase, hooks)

    async def _open(self, state: str, zipf: float | None, arrivals: Sequence[Arrival]) -> None:
        if zipf is None:
            assert self.catalogue.base is not None
            name, asks = "base", name_base(arrivals, self.catalogue.base)
        else:
            name = f"zipf {zipf:g}, {state}"
            asks = name_adapters(arrivals, self.catalogue.adapters, zipf, self.settings.seed)
        rate = len(asks) / asks[-1].at if asks[-1].at else None
        settings = {"arm": _arm(asks), "state": state, "zipf": zipf, "rate": None if rate is None else round(rate, 3)}
        await self._measure(
            Phase(name, len(asks)), settings, lambda phase, hooks: open_loop(self.client, asks, phase, hooks)
        )

    async def _measure(self, phase: Phase, about: dict[str, Any], run: Run) -> dict[str, Any]:
        """Run one phase into the document, also when it is interrupted."""
        seen = FirstSeen()
        control = self.control

        def start(ask: Ask) -> str:
            if ask.popularity is None:
                return "base"
            if control is None or not ask.model.version:
                return seen.start(ask)
            return control.residency.where(ask.model.version)

        began = time.perf_counter()
        self.progress.begin(phase.name, phase.offered)
        try:
            await run(phase, Hooks(start, self.progress.note))
        finally:
            adapters = 0 if about["arm"] == "base" else len(self.catalogue.adapters)
            figures = {
                "name": phase.name,
                **about,
                **phase_figures(phase, self.settings.slo, adapters),
                "engine": self._engine_samples(began),
                "error_examples": error_examples(phase.outcomes),
            }
            self._phases.append(figures)
            self._warn(phase, figures)
            self.progress.end(figures)
        return figures

    def _engine_samples(self, since: float) -> dict[str, Any] | None:
        """What the engine's state port said waited and ran."""
        if self.control is None:
            return None
        samples = [sample for sample in self.control.residency.samples if sample[0] >= since]
        waiting = [waits for _, waits, _ in samples]
        running = [runs for _, _, runs in samples]
        return {
            "samples": len(samples),
            "waiting_mean": round(sum(waiting) / len(samples), 2) if samples else None,
            "waiting_max": max(waiting, default=None),
            "in_flight_max": max(running, default=None),
        }

    def _warn(self, phase: Phase, figures: dict[str, Any]) -> None:
        lag = figures["client_lag_ms"]["p99"]
        if lag is not None and lag > BEHIND_MS:
            self.document["warnings"].append(
                f"{phase.name}: this client was up to {lag:g} ms (p99) late itself; take a machine with free cores"
            )
        if figures["errors"]:
            self.document["warnings"].append(f"{phase.name}: {figures['errors']}, such as {figures['error_examples']}")

    def _note_penalty(self, zipf: float, rate: float) -> None:
        if self._base_rate and rate:
            self.document.setdefault("penalty", []).append(
                {
                    "zipf": zipf,
                    "requests_per_s": rate,
                    "base_requests_per_s": self._base_rate,
                    "penalty": round(1 - rate / self._base_rate, 4),
                }
            )

    async def _place(self, models: Sequence[Model], tier: Tier) -> None:
        assert self.control is not None
        assert self.control.admin is not None
        self.progress.say(f"bringing {len(models)} adapters to the tier {tier.value}")
        await self.control.admin.place(models, tier)
        await self.control.residency.refresh()

    async def _tiers(self) -> None:
        """Single requests, one after another, from each tier: what a tenant's first request after idling pays."""
        chosen = list(range(len(self.catalogue.adapters)))
        Random(f"tiers {self.settings.seed}").shuffle(chosen)
        chosen = sorted(chosen[: self.settings.tier_samples])
        models = [self.catalogue.adapters[number] for number in chosen]
        sizes = self.settings.sizes
        for tier in TIERS:
            await self._place(models, tier)
            asks = [
                Ask(0.0, number, model, chosen[number], sizes.prompt, sizes.answer, tier.value)
                for number, model in enumerate(models)
            ]
            about = {"arm": "adapters", "state": "tier", "zipf": None, "tier": tier.value}
            await self._measure(Phase(f"one by one from {tier.value}", len(asks)), about, self._closed_run(asks, 1))


def _arm(asks: Sequence[Ask]) -> str:
    return "base" if asks[0].popularity is None else "adapters"
