"""One engine loop driven through its messages, the way the api process drives it, with the times of all its news.

Used by bench/bench.py and the parts. The loop runs in this thread, so a figure holds planning, running, sampling and
sending, but neither HTTP nor the pipe.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lorafleet_engine.bench.catalogue import Blob, SharedBytesError, check_distinct
from lorafleet_engine.loop import EngineLoop
from lorafleet_engine.messages import (
    AdapterLoaded,
    AdapterRejected,
    FromLoop,
    Generate,
    LoadAdapter,
    LoopState,
    Quantization,
    Rejected,
    SamplingParams,
    StepLimits,
    StepTokens,
    Tokens,
    ToLoop,
    UnloadAdapter,
)
from lorafleet_engine.runner.assembly import EngineCore

IDLE_S = 1e-4
"""How long a loop with nothing to do waits for the feed, or for a load."""


class BenchError(Exception):
    """The engine did not do what a case needs, so there is no figure."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What an engine is built with; cases of one plan share an engine."""

    limits: StepLimits
    max_model_len: int
    quantization: Quantization = "none"

    def caps(self) -> dict[str, int]:
        """The caps of a step, as a record states them."""
        limits = self.limits
        return {
            "tokens": limits.tokens,
            "sequences": limits.sequences,
            "distinct_adapters": limits.distinct_adapters,
            "rank_sum": limits.rank_sum,
        }


@dataclass(slots=True)
class Run:
    """What one call of Session.run saw, in seconds since its start: `times` of every request's news, when each version
    was `loaded`."""

    seconds: float = 0.0
    tokens: int = 0
    times: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    loaded: dict[str, float] = field(default_factory=dict)
    news: list[Tokens | StepTokens] = field(default_factory=list)

    def answer(self, request_id: str) -> list[int]:
        """The tokens of a request."""
        found: list[int] = []
        for each in self.news:
            if isinstance(each, StepTokens):
                found += [
                    token for name, token in zip(each.request_ids, each.token_ids, strict=True) if name == request_id
                ]
            elif each.request_id == request_id:
                found += [token.id for token in each.tokens]
        return found

    def gaps(self, request_id: str, first: int, last: int | None = None) -> list[float]:
        """Seconds between a request's tokens `first` .. `last`."""
        times = self.times[request_id][first:last]
        return [after - before for before, after in pairwise(times)]


class _Mailbox:
    """A Mailbox (loop.py) of two lists; news is stamped when it is sent."""

    def __init__(self) -> None:
        self.inbox: list[ToLoop] = []
        self.outbox: list[tuple[float, FromLoop]] = []

    def receive(self, wait_s: float) -> list[ToLoop]:
        taken, self.inbox = self.inbox, []
        if not taken and wait_s:
            time.sleep(IDLE_S)
        return taken

    def send(self, message: FromLoop) -> None:
        self.outbox.append((time.perf_counter(), message))


class Session:
    """An engine and what is resident in it. `rank_unit_bytes` are those of one unit of rank."""

    def __init__(self, core: EngineCore, rank_unit_bytes: int) -> None:
        self.core = core
        self._unit = rank_unit_bytes
        self._mailbox = _Mailbox()
        self._loop = EngineLoop(core, self._mailbox, state_interval_s=0.5)
        self._resident: dict[str, Blob] = {}
        self._state: LoopState | None = None
        self._sent = 0

    def requests(
        self, prompts: Sequence[Sequence[int]], adapters: Sequence[Blob | None], answer: int
    ) -> list[Generate]:
        """Greedy requests of exactly `answer` tokens each, with ids never used before."""
        made = []
        for prompt, adapter in zip(prompts, adapters, strict=True):
            params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
            key = None if adapter is None else adapter.key
            made.append(Generate(str(self._sent), key, tuple(prompt), params))
            self._sent += 1
        return made

    def run(self, feed: Iterable[Sequence[ToLoop]]) -> Run:
        """Send one item of `feed` before each turn; turn until it is used up and all requests and loads are answered.

        A request for a version that is being loaded is sent once it is loaded, as the api does. Raises BenchError when
        the engine refuses or fails anything.
        """
        run, source, live, more = Run(), iter(feed), dict[str, Generate](), True
        held: dict[str, list[ToLoop]] = {}
        started = time.perf_counter()
        while more or live or held:
            messages = next(source, None) if more else None
            more = messages is not None
            for each in messages or ():
                self._send(each, live, held)
            self._loop.turn()
            news, self._mailbox.outbox = self._mailbox.outbox, []
            for at, message in news:
                self._note(run, live, at - started, message)
                if isinstance(message, AdapterLoaded):
                    self._mailbox.inbox += held.pop(message.key, [])
        run.seconds = time.perf_counter() - started
        return run

    def _send(self, message: ToLoop, live: dict[str, Generate], held: dict[str, list[ToLoop]]) -> None:
        """Put a message into the inbox, or a request with those that wait for its version."""
        if isinstance(message, Generate):
            live[message.request_id] = message
            if message.adapter in held:
                held[message.adapter].append(message)
                return
        elif isinstance(message, LoadAdapter):
            held[message.key] = []
        self._mailbox.inbox.append(message)

    def keep(self, blobs: Sequence[Blob]) -> None:
        """Have exactly these adapters resident, and make sure that each brings bytes of its own."""
        wanted = {blob.key: blob for blob in blobs}
        gone = [UnloadAdapter(key) for key in self._resident if key not in wanted]
        self.run([gone])
        self.run([LoadAdapter(key, blob.ref)] for key, blob in wanted.items() if key not in self._resident)
        self._resident = wanted
        self.check(list(wanted.values()))

    def note_resident(self, blobs: Sequence[Blob]) -> None:
        """Tell the session what a run of one's own has loaded."""
        self._resident |= {blob.key: blob for blob in blobs}
        self.check(list(self._resident.values()))

    def check(self, blobs: Sequence[Blob]) -> None:
        """Raise SharedBytesError unless there are as many digests as adapters and the device holds all their bytes."""
        check_distinct(blobs)
        expected = sum(blob.rank for blob in blobs) * self._unit
        held = 0 if self._state is None else self._state.adapter_bytes
        if held != expected:
            raise SharedBytesError(f"{len(blobs)} adapters take {expected} bytes, the device holds {held}")

    def _note(self, run: Run, live: dict[str, Generate], at: float, message: FromLoop) -> None:
        match message:
            case StepTokens():
                run.news.append(message)
                run.tokens += len(message.token_ids)
                for request_id in message.request_ids:
                    run.times[request_id].append(at)
            case Tokens():
                run.news.append(message)
                run.tokens += len(message.tokens)
                run.times[message.request_id].append(at)
                if message.finish_reason is not None:
                    request = live.pop(message.request_id)
                    if message.usage is None or message.usage.completion_tokens != request.params.max_tokens:
                        raise BenchError(f"{message.finish_reason} after {message.usage}: {message.error}")
            case AdapterLoaded():
                run.loaded[message.key] = at
            case LoopState():
                self._state = message
            case Rejected() | AdapterRejected():
                raise BenchError(f"refused: {message.code}: {message.message}")
            case _:
                pass
