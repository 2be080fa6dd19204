"""What /metrics shows. Written by the serving code and versions.py, scraped through state.py; decides nothing.

Labels are display names, capped: once a metric's label sets are used up, new ones go to "other" (SeriesCap). Histograms
by adapter and tenant have few buckets and a smaller cap, those of the whole engine many.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lorafleet_contracts.admin import Tier
from lorafleet_contracts.series import SeriesCap
from lorafleet_engine.messages import LoopState
from lorafleet_engine.server.histogram import LightHistogram

MAX_PAIRS = 1000
"""(adapter, tenant) pairs with counters of their own."""
MAX_TIMED_PAIRS = 200
"""Those with histograms of their own."""
LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LOADS = {"fetch": ("source", "disk"), "pack": ("source", "disk"), "load": ("source", "disk", "host")}
"""Phases of a load by where it began. All are there from the start: the first of a kind is no rise otherwise."""
FIRST = (0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
WHOLE = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
STEP = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)
GAUGES = (
    ("resident_adapter_bytes", "True bytes of the adapters on the device"),
    ("adapter_budget_bytes", "Bytes that adapters may take on the device"),
    ("packing_waste_bytes", "Bytes of the pages of the adapters on the device that hold nothing"),
    ("resident_adapters", "Adapter versions on the device"),
    ("kv_pages_used", "Pages that hold KV"),
    ("pages_free", "Pages on the free list"),
    ("pages", "Pages in all"),
    ("requests_running", "Requests in the batch"),
    ("requests_waiting", "Requests in the queue"),
    ("step_adapters", "Distinct adapters in the last step"),
    ("step_rank_sum", "Sum of their ranks"),
    ("step_seconds", "Duration of the last step"),
    ("preemptions", "Preemptions since the start"),
    ("prefix_queried_tokens", "Tokens of prompts looked up in the prefix cache since the start"),
    ("prefix_hit_tokens", "Tokens of prompts found in the prefix cache since the start"),
    ("loader_restarts", "Restarts of the loader process"),
)
"""Set from the last words of loop and loader."""


@dataclass(frozen=True, slots=True)
class LoaderFigures:
    """What is shown of the loader process."""

    restarts: int
    tier_bytes: Mapping[Tier, int]


class Metrics:
    """All series of one engine, in a registry of its own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._cap, self._timed = SeriesCap(MAX_PAIRS), SeriesCap(MAX_TIMED_PAIRS)
        who = ("adapter", "tenant")
        self._requests = Counter(
            "lorafleet_adapter_requests_total", "Requests by HTTP status", (*who, "code"), registry=registry
        )
        self._tokens = Counter("lorafleet_tokens_total", "Tokens by kind", (*who, "kind"), registry=registry)
        self._lookups = Counter(
            "lorafleet_adapter_lookups_total",
            "Requests by where their adapter was when they came: gpu (warm), host, disk or source",
            (*who, "tier"),
            registry=registry,
        )
        self._cold = Histogram(
            "lorafleet_cold_load_seconds",
            "How long a request waited for its adapter to come onto the device, by where that was",
            ("start_tier",),
            registry=registry,
            buckets=LATENCY,
        )
        self._first = Histogram(
            "lorafleet_adapter_ttft_seconds",
            "From a request's arrival to its first token, cold load included",
            who,
            registry=registry,
            buckets=FIRST,
        )
        self._whole = Histogram(
            "lorafleet_adapter_request_seconds",
            "From a request's arrival to the end of its answer, of those answered with 200",
            who,
            registry=registry,
            buckets=WHOLE,
        )
        self._ttft = Histogram("lorafleet_ttft_seconds", "Time to the first token", registry=registry, buckets=LATENCY)
        self._itl = LightHistogram("lorafleet_itl_seconds", "Time between pieces of an answer", STEP)
        registry.register(self._itl)
        self._queue_wait = Histogram(
            "lorafleet_queue_wait_seconds", "Arrival to first step", registry=registry, buckets=LATENCY
        )
        self._load = _loads(registry)
        self._evictions = Counter(
            "lorafleet_adapter_evictions_total",
            "Adapters that made way for others",
            ("tier",),
            registry=registry,
        )
        self._gauges = {name: Gauge(f"lorafleet_{name}", text, registry=registry) for name, text in GAUGES}
        self._tiers = Gauge(
            "lorafleet_resident_bytes", "Bytes of adapters by tier (gpu: of their pages)", ("tier",), registry=registry
        )
        self._vllm = Gauge(
            "vllm:lora_requests_info",
            "Running adapters, for dashboards made for vLLM",
            ("running_lora_adapters", "waiting_lora_adapters", "max_lora"),
            registry=registry,
        )

    def watch(self, adapter: str, tenant: str) -> "RequestWatch":
        """Time a request that has just arrived."""
        return RequestWatch(self, adapter, tenant)

    def count_request(self, adapter: str, tenant: str, code: int, seconds: float) -> None:
        """One ended request."""
        self._requests.labels(*self._cap.fold(adapter, tenant), str(code)).inc()
        if code == HTTPStatus.OK:
            self._whole.labels(*self._timed.fold(adapter, tenant)).observe(seconds)

    def observe_adapter_first(self, adapter: str, tenant: str, seconds: float) -> None:
        """The first token of a request, since its arrival."""
        self._first.labels(*self._timed.fold(adapter, tenant)).observe(seconds)

    def count_lookup(self, adapter: str, tenant: str, tier: str) -> None:
        """Where a request found its adapter."""
        self._lookups.labels(*self._cap.fold(adapter, tenant), tier).inc()

    def observe_cold(self, start_tier: str, seconds: float) -> None:
        """How long a request waited for its adapter."""
        self._cold.labels(start_tier).observe(seconds)

    def count_tokens(self, adapter: str, tenant: str, prompt: int, completion: int) -> None:
        """Tokens of one ended request."""
        labels = self._cap.fold(adapter, tenant)
        self._tokens.labels(*labels, "prompt").inc(prompt)
        self._tokens.labels(*labels, "completion").inc(completion)

    def observe_first(self, seconds: float, queue_seconds: float | None) -> None:
        """The first token of a request."""
        self._ttft.observe(seconds)
        if queue_seconds is not None:
            self._queue_wait.observe(queue_seconds)

    def observe_gap(self, seconds: float) -> None:
        """The time between two pieces of an answer, which are a token each unless the server is behind."""
        self._itl.observe(seconds)

    def observe_load(self, phase: str, start_tier: str, seconds: float) -> None:
        """One phase of a load."""
        self._load.labels(phase, start_tier).observe(seconds)

    def count_eviction(self, tier: str) -> None:
        """An adapter that made way for another."""
        self._evictions.labels(tier).inc()

    @contextmanager
    def time_load(self, phase: str, start_tier: str) -> Iterator[None]:
        """Time one phase of a load."""
        began = perf_counter()
        yield
        self.observe_load(phase, start_tier, perf_counter() - began)

    def render(self, state: LoopState | None, loader: LoaderFigures, name_of: Callable[[str], str]) -> bytes:
        """The exposition text, with the gauges set from the last words of loop and loader."""
        self._gauges["loader_restarts"].set(loader.restarts)
        for tier, size in loader.tier_bytes.items():
            self._tiers.labels(tier.value).set(size)
        if state is not None:
            self._set_gauges(state)
            running = ",".join(sorted({name_of(version.key) for version in state.versions if version.requests}))
            self._vllm.clear()
            self._vllm.labels(running, "", str(len(state.versions))).set_to_current_time()
        return generate_latest(self.registry)

    def _set_gauges(self, state: LoopState) -> None:
        values = {
            "resident_adapter_bytes": state.adapter_bytes,
            "packing_waste_bytes": sum(version.resident_bytes - version.bytes for version in state.versions),
            "adapter_budget_bytes": state.budget.adapters,
            "resident_adapters": len(state.versions),
            "kv_pages_used": state.pages_kv,
            "pages_free": state.pages_free,
            "pages": state.pages,
            "requests_running": state.running,
            "requests_waiting": state.waiting,
            "step_adapters": state.step_adapters,
            "step_rank_sum": state.step_rank_sum,
            "step_seconds": state.step_ms / 1000,
            "preemptions": state.counters.preemptions,
            "prefix_queried_tokens": state.counters.prefix_queried_tokens,
            "prefix_hit_tokens": state.counters.prefix_hit_tokens,
        }
        for name, value in values.items():
            self._gauges[name].set(value)
        self._tiers.labels(Tier.GPU.value).set(sum(version.resident_bytes for version in state.versions))


class RequestWatch:
    """Times one request from its arrival. Made by Metrics.watch."""

    def __init__(self, metrics: Metrics, adapter: str, tenant: str) -> None:
        self._metrics, self._who = metrics, (adapter, tenant)
        self._began = perf_counter()
        self._answering = False

    def note_piece(self) -> None:
        """A piece of its answer is here: the first one counts."""
        if not self._answering:
            self._answering = True
            self._metrics.observe_adapter_first(*self._who, perf_counter() - self._began)

    def count_lookup(self, tier: str) -> None:
        """Where its adapter was."""
        self._metrics.count_lookup(*self._who, tier)

    def end(self, code: int) -> None:
        """It has ended with this HTTP status."""
        self._metrics.count_request(*self._who, code, perf_counter() - self._began)


def _loads(registry: CollectorRegistry) -> Histogram:
    """The loads by phase and by where they began, none so far of each kind."""
    labels = ("phase", "start_tier")
    loads = Histogram("lorafleet_load_seconds", "Load by phase", labels, registry=registry, buckets=LATENCY)
    for phase, tiers in LOADS.items():
        for tier in tiers:
            loads.labels(phase, tier)
    return loads
