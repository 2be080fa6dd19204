"""Drives an EngineLoop through its messages, turn by turn, in the test's own thread."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.loop import EngineLoop
from lorafleet_engine.messages import (
    AdapterLoaded,
    AdapterRejected,
    FromLoop,
    Generate,
    LoadAdapter,
    LoopConfig,
    LoopState,
    Rejected,
    StepTokens,
    Token,
    Tokens,
    ToLoop,
)
from lorafleet_engine.quality.checking import QualityChecker, make_checker
from lorafleet_engine.quality.merging import start_engine
from lorafleet_engine.runner.assembly import EngineCore

PATIENCE_S = 60


class ListMailbox:
    """A Mailbox (loop.py) of two lists."""

    def __init__(self) -> None:
        self.inbox: list[ToLoop] = []
        self.outbox: list[FromLoop] = []

    def receive(self, wait_s: float) -> list[ToLoop]:
        taken, self.inbox = self.inbox, []
        return taken

    def send(self, message: FromLoop) -> None:
        """Take the news; those of many requests apart, as loop_client.py does it."""
        if isinstance(message, StepTokens):
            pairs = zip(message.request_ids, message.token_ids, strict=True)
            self.outbox += [Tokens(request_id, (Token(token),)) for request_id, token in pairs]
        else:
            self.outbox.append(message)


@dataclass
class Answer:
    """All news of one request, joined; `margins` where it asked for the two best tokens."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    finish: str | None = None
    news: list[Tokens | Rejected] = field(default_factory=list)


class LoopDriver:
    """One engine. Adapters are packed here as the loader would do it."""

    def __init__(
        self,
        core: EngineCore,
        blob_dir: Path,
        checker: QualityChecker | None = None,
        *,
        overlapped: bool | None = None,
    ) -> None:
        self.core = core
        self.mailbox = ListMailbox()
        self.loop = EngineLoop(core, self.mailbox, state_interval_s=0, checker=checker, overlapped=overlapped)
        self._blobs = blob_dir
        self._sent = 0

    @classmethod
    def start(cls, settings: LoopConfig, blob_dir: Path, overlapped: bool | None = None) -> "LoopDriver":
        core = start_engine(settings)
        return cls(core, blob_dir, make_checker(core, settings), overlapped=overlapped)

    def load(self, key: str, adapter_dir: Path) -> AdapterLoaded | AdapterRejected:
        """Pack and load an adapter; returns the loop's answer."""
        dtype = "float32" if self.core.geometry.dtype_bytes == 4 else "bfloat16"
        self._blobs.mkdir(exist_ok=True)
        path = self._blobs / f"{len(list(self._blobs.iterdir()))}.blob"
        blob = pack_adapter(adapter_dir, self.core.config.shape, dtype).write(path)
        news = self.post(LoadAdapter(key, blob))
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for message in news:
                if isinstance(message, AdapterLoaded | AdapterRejected) and message.key == key:
                    return message
            news = self.post()
        raise AssertionError("the load does not finish")

    def post(self, *messages: ToLoop) -> list[FromLoop]:
        """Send messages, take one turn, and return what came of it."""
        before = len(self.mailbox.outbox)
        self.mailbox.inbox += messages
        self.loop.turn()
        return self.mailbox.outbox[before:]

    def run(self, requests: Iterable[Generate]) -> dict[str, Answer]:
        """Send all requests at once and turn until each has its last news."""
        requests = list(requests)
        before = len(self.mailbox.outbox)
        self.post(*requests)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            answers = collect(self.mailbox.outbox[before:])
            if all(answers[request.request_id].finish for request in requests):
                return answers
            self.loop.turn()
        raise AssertionError("the loop does not finish")

    @property
    def state(self) -> LoopState:
        """The last state that the loop sent."""
        return next(m for m in reversed(self.mailbox.outbox) if isinstance(m, LoopState))


def collect(messages: Iterable[FromLoop]) -> dict[str, Answer]:
    """Join the news of every request."""
    answers: defaultdict[str, Answer] = defaultdict(Answer)
    for message in messages:
        if isinstance(message, Rejected):
            answers[message.request_id].finish = message.code
            answers[message.request_id].news.append(message)
        elif isinstance(message, Tokens):
            answer = answers[message.request_id]
            answer.tokens += [token.id for token in message.tokens]
            answer.logprobs += [token.logprob for token in message.tokens if token.logprob is not None]
            answer.margins += [token.top[0][1] - token.top[1][1] for token in message.tokens if len(token.top) > 1]
            answer.finish = message.finish_reason
            answer.news.append(message)
    return answers
