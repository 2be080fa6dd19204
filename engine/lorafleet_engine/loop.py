"""The one thread that owns the device: inbox -> schedule -> launch -> tokens of the step before -> outbox.

On a device that runs by itself the next step is planned, packed and launched while the last one runs; only then are
the last one's tokens awaited. Runs in a process of its own (loop_process.py); tests drive it through a Mailbox of their
own. It never parses, hashes or packs. It waits for messages while nothing is live, and while tenants compete until the
step in flight needs a successor.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lorafleet_engine.mailbox import Mailbox
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import (
    AdapterLoaded,
    AdapterRejected,
    AdapterUnloaded,
    Cancel,
    Drain,
    Drained,
    FinishReason,
    Generate,
    LoadAdapter,
    LoopCounters,
    LoopReady,
    LoopState,
    Rejected,
    Shutdown,
    StepTokens,
    Token,
    Tokens,
    ToLoop,
    UnloadAdapter,
    VersionKey,
)
from lorafleet_engine.pauses import Collector
from lorafleet_engine.quality.checking import QualityChecker
from lorafleet_engine.requests import LiveRequest, Refusal, RequestRules
from lorafleet_engine.runner.assembly import EngineCore
from lorafleet_engine.runner.sampler import Sampled
from lorafleet_engine.scheduler.sequence import Advance, StepPlan
from lorafleet_engine.steps import StepMeter, StepTimes
from lorafleet_engine.versions import VersionKeeper

LOADING_WAIT_S = 0.001
"""How long an idle loop waits for messages while a load is under way, before it looks after the load again."""

STATE_GAP_S = 0.02
"""How long the state after news of versions may wait while requests run: one of hundreds of versions takes a tenth of a
step to write, and one tells of many loads."""

LEAD_S = 0.005
"""So long before a step ends the next one is planned while tenants compete: a step of hundreds of sequences takes some
milliseconds to plan and to pack."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step on the device. `live` are the requests of its samples, in order; `began` is the loop's clock."""

    plan: StepPlan
    live: list[LiveRequest]
    sampled: Sampled
    began: float


class EngineLoop:
    """One message or step at a time. `clock` gives seconds, for durations only. Steps are `overlapped` unless the
    device computes within the launch."""

    def __init__(
        self,
        core: EngineCore,
        mailbox: Mailbox,
        state_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        checker: QualityChecker | None = None,
        overlapped: bool | None = None,
    ) -> None:
        self._core = core
        self._mailbox = mailbox
        self._interval = state_interval_s
        self._clock = clock
        self._rules = RequestRules(core.placement.max_model_len, core.config.shape.vocab, core.config.eos_token_ids)
        self._versions = VersionKeeper(core, clock)
        self._checker = checker
        self._collector = Collector(clock)
        self._live: dict[str, LiveRequest] = {}
        self._counters = LoopCounters()
        self._overlapped = core.runner.asynchronous if overlapped is None else overlapped
        self._flight: _Flight | None = None
        self._landed_at = float("-inf")
        self._last_plan: StepPlan | None = None
        self._step_s = 0.0
        self._steps = StepMeter()
        self._times = StepTimes()
        self._reported_at = float("-inf")
        self._changed = True
        self._told = False
        self._open = True
        self._draining = False
        self._drained = False

    def run(self) -> None:
        """Serve until Shutdown. Raises EOFError or BrokenPipeError when the other end is gone."""
        core = self._core
        self._mailbox.send(
            LoopReady(
                core.plan.budget,
                core.geometry.page_bytes,
                core.placement.max_model_len,
                core.config.shape.vocab,
                core.config.eos_token_ids,
                core.config.shape,
                core.parity,
            )
        )
        while self._open:
            self.turn()

    def turn(self) -> None:
        """Take in what has arrived, launch a step, send the tokens of the one before, report."""
        for message in self._mailbox.receive(self._patience()):
            self._handle(message)
        for news in self._versions.poll():
            self._tell(news)
        for checked in () if self._checker is None else self._checker.poll():
            self._mailbox.send(checked)
        if self._live and self._versions.gathers(self._beginners()):
            self._land()
        elif self._live or self._flight:
            self._step()
        if self._draining and not self._live and not self._drained:
            self._drained = True
            self._mailbox.send(Drained())
        if self._changed and self._clock() - self._reported_at >= self._state_gap():
            self._report()
        self._collector.rest(idle=not self._live and not self._flight)

    def _beginners(self) -> Iterator[Resident | None]:
        """The adapters of the live requests, None for the base and for those that have begun."""
        return (None if live.started else live.sequence.adapter for live in self._live.values())

    def _patience(self) -> float:
        """Seconds to wait for the first message."""
        if self._live or self._flight:
            return self._spare()
        checking = self._checker is not None and self._checker.busy
        return LOADING_WAIT_S if self._versions.loading or checking else self._interval

    def _state_gap(self) -> float:
        """Seconds between two states: few after news of versions, none before the loop falls idle."""
        if not self._told:
            return self._interval
        return STATE_GAP_S if self._live or self._flight else 0

    def _handle(self, message: ToLoop) -> None:
        self._changed = True
        match message:
            case Generate():
                self._generate(message)
            case Cancel():
                self._cancel(message.request_id)
            case LoadAdapter():
                answer = self._versions.load(message.key, message.blob)
                if answer is not None:
                    self._tell(answer)
            case UnloadAdapter():
                self._unload(message.key)
            case Drain():
                self._draining = True
                self._report()
            case Shutdown():
                self._open = False

    def _generate(self, request: Generate) -> None:
        refusal = self._admit(request)
        if refusal is not None:
            self._count(rejected=1)
            self._mailbox.send(Rejected(request.request_id, refusal.code, refusal.message))

    def _admit(self, request: Generate) -> Refusal | None:
        """Queue the request, or say why not."""
        if self._draining:
            return Refusal("draining", "the engine is shutting down")
        if request.request_id in self._live:
            return Refusal("invalid", f"request {request.request_id} is live already")
        refusal = self._rules.refusal(request)
        if refusal is not None:
            return refusal
        live = self._rules.accept(request, self._clock())
        if request.adapter is not None:
            live.sequence.adapter = self._core.residency.acquire(request.adapter)
            if live.sequence.adapter is None:
                return Refusal("version_missing", f"version {request.adapter} is not resident")
        if not self._core.scheduler.submit(live.sequence):
            self._let_go(live)
            return Refusal("queue_full", "too many requests are waiting")
        self._live[request.request_id] = live
        return None

    def _cancel(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        self._core.scheduler.remove(live.sequence)
        self._count(cancelled=1)
        self._end(live, (), "cancelled")

    def _unload(self, key: VersionKey) -> None:
        freed = self._versions.unload(key)
        if freed is not None:
            self._gone(key, freed)

    def _gone(self, key: VersionKey, freed: int) -> None:
        self._core.scheduler.forget(key)
        self._tell(AdapterUnloaded(key, freed))

    def _tell(self, news: AdapterLoaded | AdapterRejected | AdapterUnloaded) -> None:
        """Send news of a version; the state after it follows soon."""
        if isinstance(news, AdapterUnloaded):
            self._count(unloads=int(news.bytes_freed > 0))
        else:
            self._count(loads=1)
        if isinstance(news, AdapterLoaded) and self._checker is not None:
            self._checker.want(news.key)
        self._mailbox.send(news)
        self._changed = self._told = True

    def _step(self) -> None:
        """Launch the next step, then land the one before (or this one, unless steps are overlapped)."""
        if self._spare() > 0:
            return
        before = self._flight
        launched = self._launch() if self._live else None
        if launched is None and before is None and self._live:
            raise RuntimeError("requests are live but none of them can run")
        if before is not None:
            self._land()
        self._flight = launched
        if not self._overlapped:
            self._land()

    def _spare(self) -> float:
        """Seconds for which the next step need not be planned yet. There are some while tenants compete: whoever comes
        before the step in flight is about to end is in the very next."""
        flight = self._flight
        if flight is None or not self._live or not self._core.scheduler.contended:
            return 0
        start = max(flight.began, self._landed_at)
        return max(start + self._times.expected(flight.plan) - LEAD_S - self._clock(), 0)

    def _launch(self) -> "_Flight | None":
        """Plan a step and hand it to the device; None when nothing can run before the step in flight has landed."""
        began = self._clock()
        plan = self._core.scheduler.plan()
        if plan is None:
            return None
        samples = [work for work in plan.works if work.samples]
        live = [self._live[work.sequence.request_id] for work in samples]
        draws = {
            row: request.draw(work.start + work.count, work.source)
            for row, (request, work) in enumerate(zip(live, samples, strict=True))
            if not request.plain
        }
        return _Flight(plan, live, self._core.runner.launch(plan, draws), began)

    def _land(self) -> None:
        """Wait for the tokens of the step in flight, record them and send the news."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        late = flight.sampled.ended
        tokens, told = flight.sampled.wait()
        advances = self._core.scheduler.commit(flight.plan, tokens)
        self._send_tokens(flight, advances, told)
        now = self._clock()
        self._last_plan, self._changed = flight.plan, True
        self._step_s = now - max(flight.began, self._landed_at)
        self._landed_at = now
        self._steps.add(self._step_s, flight.plan)
        self._times.learn(self._step_s, flight.plan, late=late)
        chunked = flight.plan.tokens - flight.plan.decodes
        self._count(steps=1, prompt_tokens=chunked, generated_tokens=sum(a.token is not None for a in advances))

    def _send_tokens(self, flight: "_Flight", advances: list[Advance], told: dict[int, Token]) -> None:
        """Most requests have a token more and no other news: they share a message."""
        quiet: list[tuple[str, int]] = []
        for advance in advances:
            live, number = flight.live[advance.row], advance.token
            if live.started and number is not None and advance.finish is None and advance.row not in told:
                quiet.append((live.request.request_id, number))
            else:
                token = None if number is None else told.get(advance.row) or Token(number)
                self._advance(live, token, advance, flight.began)
        if quiet:
            self._mailbox.send(StepTokens(*zip(*quiet, strict=True)))

    def _advance(self, live: LiveRequest, token: Token | None, advance: Advance, began: float) -> None:
        tokens = () if token is None else (token,)
        queue_s = None if live.started else began - live.arrived
        live.started = True
        if advance.finish is None:
            self._mailbox.send(Tokens(live.request.request_id, tokens, queue_s=queue_s, cached=live.sequence.cached))
            return
        self._count(finished=1)
        self._end(live, tokens, advance.finish, queue_s)

    def _end(
        self, live: LiveRequest, tokens: tuple[Token, ...], finish: FinishReason, queue_s: float | None = None
    ) -> None:
        """Send the last news of a request and forget it; its version may be free now."""
        del self._live[live.request.request_id]
        self._mailbox.send(
            Tokens(
                live.request.request_id,
                tokens,
                finish,
                live.usage,
                stop_token_id=tokens[-1].id if finish == "stop" else None,
                queue_s=queue_s,
                cached=live.sequence.cached,
                error="the model's output is not finite for this request" if finish == "error" else "",
            )
        )
        self._let_go(live)

    def _let_go(self, live: LiveRequest) -> None:
        adapter = live.sequence.adapter
        if adapter is not None and self._core.residency.release(adapter):
            self._gone(adapter.key, adapter.bytes)

    def _count(self, **more: int) -> None:
        now = {name: getattr(self._counters, name) + count for name, count in more.items()}
        self._counters = replace(self._counters, **now)

    def _counted(self) -> LoopCounters:
        scheduler = self._core.scheduler
        queried, hit = scheduler.prefix_tokens
        return replace(
            self._counters,
            preemptions=scheduler.preemptions,
            prefix_queried_tokens=queried,
            prefix_hit_tokens=hit,
        )

    def _report(self) -> None:
        core, plan = self._core, self._last_plan
        self._changed = self._told = False
        self._reported_at = self._clock()
        self._mailbox.send(
            LoopState(
                budget=core.plan.budget,
                adapter_bytes=core.residency.bytes,
                pages=core.pages.total,
                pages_free=core.pages.free,
                pages_adapters=self._versions.pages,
                pages_kv=core.pages.total - core.pages.free - self._versions.pages,
                running=len(core.scheduler.running),
                waiting=core.scheduler.queued,
                versions=self._versions.states(),
                counters=self._counted(),
                step_ms=self._step_s * 1e3,
                step_adapters=len(plan.adapters) if plan else 0,
                step_rank_sum=plan.rank_sum if plan else 0,
                draining=self._draining,
                sums=self._steps.sums(),
            )
        )
